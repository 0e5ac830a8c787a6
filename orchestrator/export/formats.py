"""Registry of export formats."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from orchestrator.core.records import Record
from orchestrator.export import (
    accelerate,
    deepspeed,
    hf_trainer,
    ray_train,
    rayjob,
    torchrun,
    torchtitan,
)
from orchestrator.export.bundle import Bundle, files_of
from orchestrator.export.inputs import collect_inputs
from orchestrator.export.source import ExportSource
from search_spaces.errors import UserError
from search_spaces.plan import Plan


@dataclass(frozen=True, slots=True)
class Format:
    """An export format; `refusals` yields the reasons why it cannot express a plan."""

    refusals: Callable[[Plan], Iterator[str]]
    export: Callable[[ExportSource], Bundle]


# in order of preference if the user names none
FORMATS = {
    "torchrun": Format(torchrun.refusals, torchrun.export),
    "deepspeed": Format(deepspeed.refusals, deepspeed.export),
    "accelerate": Format(accelerate.refusals, accelerate.export),
    "hf-trainer": Format(hf_trainer.refusals, hf_trainer.export),
    "ray-train": Format(ray_train.refusals, ray_train.export),
    "rayjob": Format(rayjob.refusals, rayjob.export),
    "torchtitan": Format(torchtitan.refusals, torchtitan.export),
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
            f"no export format supports the plan of trial {record.number}: {'. '.join(each)}"
        )
    if name not in FORMATS:
        raise UserError(f"--format is {name!r}; the formats are {', '.join(FORMATS)}")
    if reasons := refusals[name]:
        alternatives = f"; {', '.join(able)} can" if able else ""
        raise UserError(
            f"{name} cannot express the plan of trial {record.number}:"
            f" {'; '.join(reasons)}{alternatives}"
        )
    return name


def all_exports(source: ExportSource) -> dict[str, str]:
    """Returns the folders of all formats that can express the plan, without inputs.

    Returns:
        Texts by `format/file`.
    """
    texts: dict[str, str] = {}
    inputs = collect_inputs(source.spec, carry=False)
    for name, format_ in FORMATS.items():
        with contextlib.suppress(UserError):  # a model or a device that the format cannot train
            if not list(format_.refusals(source.plan)):
                files = files_of(format_.export(source), source, inputs)
                texts |= {f"{name}/{file}": text for file, text in files.items()}
    return texts


def export_bundle(source: ExportSource, name: str | None = None) -> Bundle:
    """Exports the plan in a format, or in the first that can express it.

    Raises:
        UserError: If the format does not exist or cannot express the plan.
    """
    return FORMATS[choose_format(name, source.record)].export(source)
