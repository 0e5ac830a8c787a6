"""Registry of export formats, and what each leaves to its user."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import get_args

from orchestrator.core.records import Record
from orchestrator.export import (
    accelerate,
    deepspeed,
    hf_trainer,
    megatron_bridge,
    ray_train,
    rayjob,
    torchrun,
    torchtitan,
    trainer_file,
    trainjob,
)
from orchestrator.export.bundle import Bundle, write_bundle
from orchestrator.export.cluster_job import export_sbatch, export_sky
from orchestrator.export.scripts import render_text
from orchestrator.export.source import ExportSource, export_source, record_to_export
from orchestrator.study.reader import load_state, model_of
from orchestrator.workspace import NamedStudy
from search_spaces.errors import UserError
from search_spaces.presets.catalogue import preset_names
from search_spaces.settings.trainers import trainer_table
from search_spaces.specification.schema import TrainerFile
from workers.prepare import check_data

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
    "ms-swift": trainer_file.export_swift,
    "verl": trainer_file.export_verl,
    "torchtitan": torchtitan.export,
    "megatron-bridge": megatron_bridge.export,
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


def export_study(
    study: NamedStudy, *, format_name: str | None, trial: int | None, folder: Path | None
) -> tuple[Record, Bundle, Path]:
    """Writes a trial's plan, or the best, in a new folder; returns record, files and folder.

    Raises UserError if there is no such plan, no format has words for it, or it cannot be written.
    """
    state = load_state(study.spec, study.name)
    record = record_to_export(state, trial)
    source = export_source(state, record, model_of(state))
    format_name = choose_format(format_name, source)  # before the data is read, which may take long
    check_data(study.spec, source.model)
    bundle = export_bundle(source, format_name)
    folder = folder or Path(f"{study.name}-{format_name}")
    write_bundle(bundle, source, folder)
    return record, bundle, folder


def export_bundle(source: ExportSource, name: str | None = None) -> Bundle:
    """Exports the plan in a format, or in the first that can express it.

    Raises:
        UserError: If the format does not exist or cannot express the plan.
    """
    name = choose_format(name, source)
    return replace(FORMATS[name](source), caveats=_caveats(name, source))


def _caveats(format_name: str, source: ExportSource) -> tuple[str, ...]:
    """Returns the sentences on what a format leaves to its user, each on one line."""
    plan = source.plan
    text = render_text(
        "caveats.jinja",
        format=format_name,
        source=source,
        plan=plan,
        spec=source.spec,
        is_file=format_name in get_args(TrainerFile),
        is_preset=source.spec.model.name in preset_names(),
        pinned=", in pinned memory" if plan.loader_pin_memory else "",
        all_recomputed=hf_trainer.all_recomputed(plan),
        memory_gib=rayjob.memory_gib(source, math.ceil(plan.world_size / source.hosts)),
    )
    return tuple(" ".join(one.split()) for one in re.split("^- ", text, flags=re.MULTILINE)[1:])
