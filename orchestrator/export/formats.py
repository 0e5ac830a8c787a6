"""The formats by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from orchestrator.export import deepspeed, torchrun
from orchestrator.export.bundle import Bundle
from orchestrator.export.taken import Taken
from search_spaces.errors import UserError
from search_spaces.plan import Plan
from search_spaces.record import Record


@dataclass(frozen=True, slots=True)
class Format:
    """A way to write a plan down. `refusals` says why it cannot, a reason each."""

    refusals: Callable[[Plan], Iterator[str]]
    export: Callable[[Taken], Bundle]


FORMATS = {
    "deepspeed": Format(deepspeed.refusals, deepspeed.export),
    "torchrun": Format(torchrun.refusals, torchrun.export),
}


def fitting(name: str, record: Record) -> Format:
    """The format of that name, if it can say the plan of a trial.

    Raises:
        UserError: If there is no such format, or it cannot.
    """
    known = FORMATS.get(name)
    if known is None:
        raise UserError(f"--format is {name!r}, the formats are {', '.join(FORMATS)}")
    if reasons := list(known.refusals(record.plan)):
        able = [other for other, form in FORMATS.items() if not any(form.refusals(record.plan))]
        instead = f"; {', '.join(able)} can" if able else ""
        raise UserError(
            f"{name} cannot say the plan of trial {record.number}: {'; '.join(reasons)}{instead}"
        )
    return known


def exported(taken: Taken, name: str) -> Bundle:
    """The plan in a format.

    Raises:
        UserError: If there is no such format, or it cannot say the plan.
    """
    return fitting(name, taken.record).export(taken)
