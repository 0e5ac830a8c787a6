"""Single switches on the script of the best plan: what each would gain, before anybody builds it.

Every variant is a plain loop in a process of its own.
"""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu.cases import GPT2_XL, LLAMA_1B, Case, reference, winner
from benchmarks.gpu.plain import plain_rate, write_plain
from benchmarks.gpu.run import Run
from search_spaces.errors import UserError

# The model up to its head, then head and loss in one call, over all positions but each last one
_HEAD = """
    class Headed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids, labels):
            hidden = self.model.base_model(input_ids=input_ids).last_hidden_state.flatten(0, 1)
            targets = torch.nn.functional.pad(labels, (0, 1), value=-100)[:, 1:].flatten()
            return loss(hidden, self.model.get_output_embeddings().weight, targets)

{loss}

    return Headed()
"""
_COMPILED_LOSS = """
    @torch.compile
    def loss(hidden, weight, targets):
        logits = torch.nn.functional.linear(hidden, weight)
        return torch.nn.functional.cross_entropy(logits.float(), targets)
"""
_CUT_LOSS = """
    from cut_cross_entropy import linear_cross_entropy

    def loss(hidden, weight, targets):
        return linear_cross_entropy(hidden.bfloat16(), weight.bfloat16(), targets)
"""
_LIGER_LOSS = """
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    def loss(hidden, weight, targets):
        return LigerFusedLinearCrossEntropyLoss()(weight.bfloat16(), hidden.bfloat16(), targets)
"""
_ATTENTION = """
    for each in ("flash", "mem_efficient", "cudnn", "math"):
        getattr(torch.backends.cuda, f"enable_{{each}}_sdp")(each == "{kernel}" or DEVICE == "cpu")
"""
_FLOAT8 = """
    from torchao.float8 import convert_to_float8_training

    convert_to_float8_training(model, module_filter_fn=lambda _, name: "lm_head" not in name)
"""
_WHOLE = """
    model.compile()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A variant of a script; `packages` are those that it imports beyond torch and transformers."""

    way: str
    code: str = ""
    packages: tuple[str, ...] = ()
    case: Case = LLAMA_1B
    config: Mapping[str, Any] = field(default_factory=dict)
    knobs: Mapping[str, Any] = field(default_factory=dict)


def switches(*, tiny: bool) -> tuple[Switch, ...]:
    """All variants, those that are worth most first."""
    vocabularies = (8145, 8192) if tiny else (50257, 50304)
    return (
        Switch(way="as is"),
        Switch(way="head and loss compiled", code=_HEAD.format(loss=_COMPILED_LOSS)),
        Switch(
            way="cut cross entropy",
            code=_HEAD.format(loss=_CUT_LOSS),
            packages=("cut_cross_entropy", "triton"),
        ),
        *(
            Switch(
                way=f"gpt2-xl, {size} words",
                case=GPT2_XL,
                config={"vocab_size": size},
                knobs=reference(tiny=tiny),
            )
            for size in vocabularies
        ),
        Switch(way="float8", code=_FLOAT8, packages=("torchao",)),
        Switch(way="whole model compiled", code=_WHOLE, knobs={"compile": False}),
        *(
            Switch(way=f"attention by {kernel}", code=_ATTENTION.format(kernel=kernel))
            for kernel in ("cudnn", "flash", "mem_efficient")
        ),
        Switch(
            way="Liger", code=_HEAD.format(loss=_LIGER_LOSS), packages=("liger_kernel", "triton")
        ),
    )


def measure(run: Run) -> None:
    """Runs each variant that has no result yet, while there is time."""
    for switch in switches(tiny=run.tiny):
        if not run.has(switch.way):
            run.write(switch.way, {"way": switch.way} | _variant(run, switch))


def _variant(run: Run, switch: Switch) -> dict[str, Any]:
    """Samples per second of a variant, or why there are none."""
    if missing := [name for name in switch.packages if importlib.util.find_spec(name) is None]:
        return {"rate": None, "missing": " ".join(missing)}
    knobs = winner(tiny=run.tiny) | dict(switch.knobs)
    spec, plan = switch.case.one_plan(knobs, tiny=run.tiny, config=switch.config)
    with TemporaryDirectory(prefix="plimsoll-gpu-") as kept:
        folder = Path(kept, "script")
        exported = write_plain(folder, spec, plan, switch.code)
        try:
            rate = plain_rate(folder, exported, tiny=run.tiny)
        except UserError as error:
            return {"rate": None, "plan": plan.as_dict(), "failed": str(error)}
    return {"rate": rate, "plan": plan.as_dict()}
