"""An exported script with a model and data of its own: nothing of Plimsoll is in it any more.

What a user does with an exported script: the two functions under "yours" are written anew, here
with transformers alone and random tokens.
"""

from __future__ import annotations

from pathlib import Path

from orchestrator.export.scripts import SCRIPT
from search_spaces.errors import UserError
from search_spaces.plan import Plan
from search_spaces.presets.catalogue import preset_config
from search_spaces.spec.schema import SweepSpec
from workers.models.load import describe

_FUNCTIONS = '''
def make_model() -> tuple[torch.nn.Module, list[torch.nn.Module]]:
    """The model of transformers, and its repeated blocks."""
    from transformers import AutoConfig, {auto}

    told = {config!r}
    config = AutoConfig.for_model(told.pop("model_type"), **told)
    model = {auto}.from_config(config, attn_implementation={attention!r})
    stacks = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList)]
    return model, list(next(stack for stack in stacks if len(stack) == {blocks}))


def make_steps(rank: int) -> Iterator[list[tuple[dict[str, torch.Tensor], float]]]:
    """Random tokens, as many as a plan's samples have."""
    tokens = torch.Generator().manual_seed(rank)
    while True:
        drawn = torch.randint(
            {vocabulary}, (ACCUMULATION, MICRO_BATCH, {length}), generator=tokens
        )
        yield [({{"input_ids": ids, "labels": ids}}, 1 / ACCUMULATION) for ids in drawn]


def missing() -> str | None:
    """Nothing that the functions above need is missing."""
    return None


'''
_YOURS, _PLAN = "yours\n", "plan\n"
_AUTO = {"causal-lm": "AutoModelForCausalLM", "masked-lm": "AutoModelForMaskedLM"}


def write_plain(exported: Path, folder: Path, spec: SweepSpec, plan: Plan) -> Path:
    """Writes an exported script again, with functions that need no Plimsoll; returns the file.

    Raises:
        UserError: If the script is not one that this knows how to change, or Plimsoll is still in
            it afterwards.
    """
    text = (exported / SCRIPT).read_text("utf-8")
    head, _, rest = text.partition(_YOURS)
    _, _, tail = rest.partition("\n# ---")
    facts = describe(spec.model, spec.train)
    config = preset_config(spec.model.name) | spec.model.config | {"use_cache": False}
    config.pop("architectures")
    functions = _FUNCTIONS.format(
        auto=_AUTO[spec.model.task],
        config=config,
        attention=plan.attention,
        blocks=facts.blocks,
        vocabulary=facts.vocab_size,
        length=spec.train.sequence_length,
    )
    changed = f"{head}{_YOURS}\n{functions}# ---{tail}"
    if not tail or "workers." in changed or "search_spaces" in changed:
        raise UserError(f"{exported / SCRIPT}: its functions were not found to be replaced")
    folder.mkdir()
    file = folder / SCRIPT
    file.write_text(changed, "utf-8")
    return file
