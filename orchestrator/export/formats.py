"""The formats by name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

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
from search_spaces.trial import Record


@dataclass(frozen=True, slots=True)
class Format:
    """A way to write a plan down. `refusals` says why it cannot, a reason each."""

    refusals: Callable[[Plan], Iterator[str]]
    export: Callable[[ExportSource], Bundle]


# without a name, the first that can say a plan is taken
FORMATS = {
    "torchrun": Format(torchrun.refusals, torchrun.export),
    "deepspeed": Format(deepspeed.refusals, deepspeed.export),
    "accelerate": Format(accelerate.refusals, accelerate.export),
    "hf-trainer": Format(hf_trainer.refusals, hf_trainer.export),
    "ray-train": Format(ray_train.refusals, ray_train.export),
    "rayjob": Format(rayjob.refusals, rayjob.export),
    "torchtitan": Format(torchtitan.refusals, torchtitan.export),
}


def fitting(name: str | None, record: Record) -> str:
    """The name of the format, or of the first that can say the plan of a trial.

    Raises:
        UserError: If there is no such format, or it cannot, or none can.
    """
    refused = {known: list(form.refusals(record.plan)) for known, form in FORMATS.items()}
    able = [known for known, reasons in refused.items() if not reasons]
    if name is None:
        if able:
            return able[0]
        each = (f"{known}: {'; '.join(reasons)}" for known, reasons in refused.items())
        raise UserError(f"no format can say the plan of trial {record.number}: {'. '.join(each)}")
    if name not in FORMATS:
        raise UserError(f"--format is {name!r}, the formats are {', '.join(FORMATS)}")
    if reasons := refused[name]:
        instead = f"; {', '.join(able)} can" if able else ""
        raise UserError(
            f"{name} cannot say the plan of trial {record.number}: {'; '.join(reasons)}{instead}"
        )
    return name


def every_export(taken: ExportSource) -> dict[str, str]:
    """The folders of all formats that can say the plan, without inputs: texts by `format/name`."""
    texts: dict[str, str] = {}
    inputs = collect_inputs(taken.spec, carry=False)
    for name, form in FORMATS.items():
        with contextlib.suppress(UserError):  # of a model, or of devices, that it cannot train
            if not list(form.refusals(taken.plan)):
                files = files_of(form.export(taken), taken, inputs)
                texts |= {f"{name}/{file}": text for file, text in files.items()}
    return texts


def exported(taken: ExportSource, name: str | None = None) -> Bundle:
    """The plan in a format, or in the first that can say it.

    Raises:
        UserError: If there is no such format, or it cannot say the plan.
    """
    return FORMATS[fitting(name, taken.record)].export(taken)
