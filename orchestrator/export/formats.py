"""Registry of export formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from orchestrator.core.records import Record
from orchestrator.export import accelerate, deepspeed, hf_trainer, ray_train, rayjob, torchrun
from orchestrator.export.bundle import Bundle
from orchestrator.export.cluster_job import export_sbatch, export_sky
from orchestrator.export.expressed_knobs import ExpressedKnobs
from orchestrator.export.scripts import fsdp2_refusals
from orchestrator.export.source import ExportSource
from search_spaces.errors import UserError
from search_spaces.plan import Plan


@dataclass(frozen=True, slots=True)
class Format:
    """An export format.

    Attributes:
        export: Returns the files of a plan that the format expresses.
        expressed: The knobs that it expresses, for each engine that it supports.
        combinations: Yields the reasons why it cannot express values together that it expresses
            one by one.
    """

    export: Callable[[ExportSource], Bundle]
    expressed: tuple[ExpressedKnobs, ...]
    combinations: Callable[[Plan], Iterable[str]] = lambda _: ()

    def refusals(self, plan: Plan) -> Iterator[str]:
        """Yields the reasons why the format cannot express a plan; each names a knob."""
        knobs = next((knobs for knobs in self.expressed if knobs.engine == plan.engine), None)
        if knobs is None:
            yield f"engine is {plan.engine}"
            return
        yield from knobs.refusals(plan)
        yield from self.combinations(plan)


_BOTH_ENGINES = (torchrun.EXPRESSED, deepspeed.EXPRESSED)
_OWN_LOOP = "`load_best` applies every plan in a loop of your own"
# in order of preference if the user names none
FORMATS = {
    "torchrun": Format(torchrun.export, (torchrun.EXPRESSED,)),
    "deepspeed": Format(deepspeed.export, (deepspeed.EXPRESSED,)),
    "accelerate": Format(accelerate.export, (accelerate.EXPRESSED,), fsdp2_refusals),
    "hf-trainer": Format(
        hf_trainer.export, (hf_trainer.TORCH, hf_trainer.DEEPSPEED), fsdp2_refusals
    ),
    "ray-train": Format(ray_train.export, _BOTH_ENGINES),
    "rayjob": Format(rayjob.export, _BOTH_ENGINES),
    "slurm": Format(export_sbatch, _BOTH_ENGINES),
    "sky": Format(export_sky, _BOTH_ENGINES),
}


def choose_format(name: str | None, record: Record) -> str:
    """Returns the name of a format, or of the first that can express the plan of a trial.

    Raises:
        UserError: If the format does not exist or cannot express the plan, or if none can.
    """
    refusals = {
        format_name: list(format_.refusals(record.plan)) for format_name, format_ in FORMATS.items()
    }
    able = [format_name for format_name, reasons in refusals.items() if not reasons]
    if name is None:
        if able:
            return able[0]
        each = (f"{format_name}: {'; '.join(reasons)}" for format_name, reasons in refusals.items())
        raise UserError(
            f"no export format supports the plan of trial {record.number}, but {_OWN_LOOP}:"
            f" {'. '.join(each)}"
        )
    if name not in FORMATS:
        raise UserError(f"--format is {name!r}; the formats are {', '.join(FORMATS)}")
    if reasons := refusals[name]:
        alternatives = f"{', '.join(able)} can" if able else f"no format can, but {_OWN_LOOP}"
        raise UserError(
            f"{name} cannot express the plan of trial {record.number}:"
            f" {'; '.join(reasons)}; {alternatives}"
        )
    return name


def export_bundle(source: ExportSource, name: str | None = None) -> Bundle:
    """Exports the plan in a format, or in the first that can express it.

    Raises:
        UserError: If the format does not exist or cannot express the plan.
    """
    return FORMATS[choose_format(name, source.record)].export(source)
