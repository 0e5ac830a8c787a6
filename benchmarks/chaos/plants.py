"""Bugs that a campaign must find: what the sweep itself does wrong, planted by its model's module.

Every process of a sweep that imports the model is told which by its environment.
"""

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from itertools import count

from orchestrator.core.records import Record
from search_spaces.trial import Estimate, Measured

VARIABLE = "CHAOS_PLANT"  # names of bugs
DROPPED, INVENTED = 2, 3  # which of a sweep's measurements a record's bug is about


def plant() -> None:
    """Plants the bugs that this process is to have."""
    for name in os.environ.get(VARIABLE, "").split():
        PLANTS[name]()


def _drop_record() -> None:
    """A measurement is not told to the study."""
    _tell_instead(DROPPED, lambda *_: None)


def _invent() -> None:
    """A figure is another than was measured."""

    def faster(record: Record, told: Measured) -> Record:
        twice = Estimate(
            **{name: 2 * value for name, value in asdict(told.samples_per_second).items()}
        )
        return replace(record, outcome=replace(told, samples_per_second=twice))

    _tell_instead(INVENTED, faster)


def _tell_instead(victim: int, changed: Callable[[Record, Measured], Record | None]) -> None:
    """Changes one of the measurements that a driver tells: the one of that number."""
    from orchestrator.study.study import Study

    tell, measured = Study.tell, count(1)

    def told(study: Study, record: Record) -> None:
        instead: Record | None = record
        if isinstance(record.outcome, Measured) and next(measured) == victim:
            instead = changed(record, record.outcome)
        if instead is not None:
            tell(study, instead)

    Study.tell = told  # type: ignore[method-assign, assignment]


def _leave_process() -> None:
    """A worker starts something that is no part of its group, and no child of its own.

    Ray ends the children of a worker that exits in good order.
    """
    from ray import get_runtime_context, is_initialized

    if is_initialized() and get_runtime_context().get_actor_id():
        subprocess.run(["sh", "-c", "sleep 600 &"], start_new_session=True, check=True)


PLANTS: Mapping[str, Callable[[], None]] = {
    "drop_record": _drop_record,
    "invent": _invent,
    "leave_process": _leave_process,
}
