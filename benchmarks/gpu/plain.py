"""An exported script without Plimsoll, run as any user runs it: its lines say how fast it was.

The two functions under "yours" are written anew, with transformers alone and random tokens.
Nothing of the script depends on what a trial measured, so it is written before any.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.outcomes import measured
from orchestrator.core.reasons import IsBaseline
from orchestrator.core.records import Record
from orchestrator.export.bundle import write_bundle
from orchestrator.export.formats import export_bundle
from orchestrator.export.scripts import SCRIPT
from orchestrator.export.source import ExportSource
from orchestrator.export.verify import UNSTEADY_STEPS
from search_spaces.errors import UserError
from search_spaces.plan import Plan
from search_spaces.presets.catalogue import preset_config
from search_spaces.settings.export_manifest import ExportManifest
from search_spaces.specification.schema import SweepSpec
from workers.measure.interval import mean_estimate
from workers.measure.steady import warmup_length
from workers.prepare import prepare

_TAIL_LETTERS = 2000
_STEPS, _TINY_STEPS = 20, 8  # six and three of them are warm-up
_SECONDS, _TINY_SECONDS = 90.0, 600.0  # of a script
_FUNCTIONS = '''
def make_model() -> tuple[torch.nn.Module, list[torch.nn.Module]]:
    """The model of transformers, and its repeated blocks."""
    from transformers import AutoConfig, AutoModelForCausalLM

    told = {config!r}
    config = AutoConfig.for_model(told.pop("model_type"), **told)
    model = AutoModelForCausalLM.from_config(config, attn_implementation={attention!r})
    stacks = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList)]
    blocks = list(next(stack for stack in stacks if len(stack) == {blocks}))
    return model, blocks


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
_YOURS = "yours\n"


def write_plain(folder: Path, spec: SweepSpec, plan: Plan) -> ExportManifest:
    """Writes the exported script of a plan, with functions that need no Plimsoll.

    Args:
        folder: Where the script is written, as `train.py`.
        spec: What is trained.
        plan: The plan.

    Raises:
        UserError: If the script is not one that this knows how to change, or Plimsoll is still in
            it afterwards.
    """
    source = source_of(spec, plan)
    write_bundle(export_bundle(source, "torchrun"), source, folder)
    file = folder / SCRIPT
    head, _, rest = file.read_text("utf-8").partition(_YOURS)
    _, _, tail = rest.partition("\n# ---")
    facts = source.model
    config = preset_config(spec.model.name) | spec.model.config | {"use_cache": False}
    config.pop("architectures")
    functions = _FUNCTIONS.format(
        config=config,
        attention=plan.attention,
        blocks=facts.blocks,
        vocabulary=facts.vocab_size,
        length=spec.train.sequence_length,
    )
    changed = f"{head}{_YOURS}\n{functions}# ---{tail}"
    if not tail or "workers." in changed or "search_spaces" in changed:
        raise UserError(f"{file}: its functions were not found to be replaced")
    file.write_text(changed, "utf-8")
    return ExportManifest.read(folder)


def source_of(spec: SweepSpec, plan: Plan) -> ExportSource:
    """The plan as a trial that nobody ran."""
    batch, tokens = spec.train.global_batch, spec.train.sequence_length
    outcome = measured(1.0, batch=batch, tokens=tokens, half_width=0.0, peak_bytes=0, limit_bytes=1)
    record = Record(
        number=0,
        plan=plan,
        outcome=outcome,
        reason=IsBaseline(),
        started_at=0.0,
        ended_at=0.0,
        fingerprint=None,
    )
    return ExportSource(
        study="plain",
        spec=spec,
        model=prepare(spec),
        record=record,
        outcome=outcome,
        validation=None,
        device=spec.cluster.device,
        hosts=1,
        loss_tolerance=0.0,
    )


def plain_rate(folder: Path, exported: ExportManifest, *, tiny: bool) -> float:
    """Samples per second by the mean of a script's steady steps, by its own clock.

    Plimsoll is not on the path of its process.

    Raises:
        UserError: If it fails, or takes longer than a GPU or a busy CPU can.
    """
    steps, seconds = (_TINY_STEPS, _TINY_SECONDS) if tiny else (_STEPS, _SECONDS)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    others = [path for path in paths if path and not Path(path, "search_spaces").is_dir()]
    file = folder / SCRIPT
    try:
        ended = subprocess.run(
            [sys.executable, "-P", str(file), "--steps", str(steps)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(others), **dict(exported.environment)},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"{file}: took longer than {seconds:.0f} s") from None
    if ended.returncode:
        raise UserError(f"{file}: ended with {ended.returncode}: {ended.stderr[-_TAIL_LETTERS:]}")
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
