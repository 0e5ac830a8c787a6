"""An exported script without Plimsoll, run as any user runs it: its lines say how fast it was.

The two functions under "yours" are written anew, with transformers alone and random tokens.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from orchestrator.export.scripts import SCRIPT
from orchestrator.export.verify import UNSTEADY_STEPS
from search_spaces.errors import UserError
from search_spaces.plan import Plan
from search_spaces.presets.catalogue import preset_config
from search_spaces.settings.export_manifest import ExportManifest
from search_spaces.spec.schema import SweepSpec
from workers.measure.interval import mean_estimate
from workers.measure.steady import warmup_length
from workers.models.load import describe

_TAIL_LETTERS = 2000
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


def plain_rate(script: Path, exported: ExportManifest, *, steps: int, seconds: float) -> float:
    """Samples per second by the median of a script's steady steps.

    Plimsoll is not on the path of its process, and its own clock is what counts.

    Raises:
        UserError: If it fails, or takes longer than `seconds`.
    """
    command = [sys.executable, "-P", str(script), "--steps", str(steps)]
    environment = {name: v for name, v in os.environ.items() if name != "PYTHONPATH"}
    try:
        ended = subprocess.run(
            command,
            cwd=script.parent,
            env=environment | dict(exported.environment),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"{script}: took longer than {seconds:.0f} s") from None
    if ended.returncode:
        raise UserError(f"{script}: ended with {ended.returncode}: {ended.stderr[-_TAIL_LETTERS:]}")
    return rate_of(ended.stdout, exported.plan.global_batch)


def rate_of(said: str, batch: int) -> float:
    """Samples per second from the lines of a script.

    Raises:
        UserError: If it told of too few steps.
    """
    told = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    taken = [batch / line["samples_per_second"] for line in told[UNSTEADY_STEPS:]]
    if not taken:
        raise UserError(f"a plain loop told of {len(told)} steps, which are too few")
    return batch / mean_estimate(taken[warmup_length(taken) :]).value
