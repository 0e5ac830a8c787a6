"""Registry of export formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from orchestrator.export import (
    accelerate,
    deepspeed,
    hf_trainer,
    ray_train,
    rayjob,
    torchrun,
    torchtitan,
    trainer_file,
    trainjob,
)
from orchestrator.export.bundle import Bundle
from orchestrator.export.cluster_job import export_sbatch, export_sky
from orchestrator.export.source import ExportSource
from search_spaces.errors import UserError
from search_spaces.settings.trainers import trainer_table

_OWN_LOOP = "`load_best` applies every plan in a loop of your own"
FORMATS: Mapping[str, Callable[[ExportSource], Bundle]] = {  # files of a plan that one expresses
    "torchrun": torchrun.export,
    "deepspeed": deepspeed.export,
    "accelerate": accelerate.export,
    "hf-trainer": hf_trainer.export,
    "ray-train": ray_train.export,
    "rayjob": rayjob.export,
    "slurm": export_sbatch,
    "sky": export_sky,
    "trainjob": trainjob.export,
    "axolotl": trainer_file.export_axolotl,
    "llama-factory": trainer_file.export_llama_factory,
    "trl": trainer_file.export_trl,
    "torchtitan": torchtitan.export,
}


def choose_format(name: str | None, source: ExportSource) -> str:
    """Returns the name of a format; if None, the specification's trainer, or the first able one.

    Raises:
        UserError: If the format does not exist or cannot express the plan, or if none can.
    """
    plan, spec, number = source.plan, source.spec, source.record.number
    refusals = {
        format_name: trainer.refusals(plan, spec, source.model, source.device)
        for format_name, trainer in trainer_table().items()
    }
    able = [format_name for format_name, reasons in refusals.items() if not reasons]
    if name is None and spec.trainer != "own":
        name = spec.trainer
    if name is None:
        if able:
            return able[0]
        each = (f"{format_name}: {'; '.join(reasons)}" for format_name, reasons in refusals.items())
        raise UserError(
            f"no export format supports the plan of trial {number}, but {_OWN_LOOP}:"
            f" {'. '.join(each)}"
        )
    if name not in FORMATS:
        raise UserError(f"--format is {name!r}; the formats are {', '.join(FORMATS)}")
    if reasons := refusals[name]:
        alternatives = f"{', '.join(able)} can" if able else f"no format can, but {_OWN_LOOP}"
        raise UserError(
            f"{name} cannot express the plan of trial {number}:"
            f" {'; '.join(reasons)}; {alternatives}"
        )
    return name


def export_bundle(source: ExportSource, name: str | None = None) -> Bundle:
    """Exports the plan in a format, or in the first that can express it.

    Raises:
        UserError: If the format does not exist or cannot express the plan.
    """
    return FORMATS[choose_format(name, source)](source)
