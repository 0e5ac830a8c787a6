"""Sweeps that end at named failpoints: `python -m benchmarks.chaos --group-life`.

Faults of the campaign strike at random moments. A failpoint strikes in one moment of one step, such
as between a rank's measurement and its report, and the judge asks for the same: see `judge`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from search_spaces.spec.failpoints import FOLDER_VARIABLE, VARIABLE
from tests.rigs.judge import Injected, struck

_PASSES = "passes"  # folder in which all processes of a sweep count
# the fault that the death of the process is that reaches a failpoint; any other is the driver's
_KINDS = {"rank": "rank_killed", "group": "actor_killed"}
_DRIVER = "driver_killed"
# All failpoints of a group's life. No plan is struck twice: starts fail as a sweep begins,
# and trials that are struck lie apart, with the retry of one in between.
GROUP_LIFE = (
    (
        *("rank.register.before=kill:1", "rank.run.before=kill:4", "rank.run.after=kill:12"),
        *("rank.post.before=kill:4", "group.stop.before=kill:1"),
    ),
    (
        *("rank.register.after=kill:1", "rank.ready.before=kill:1", "rank.post.after=kill:2"),
        "group.stop.after=kill:1",
    ),
    ("group.start.before=kill:1", "group.run.before=kill:4", "group.run.after=kill:4"),
    (
        *("group.start.after=kill:1", "trial.send.before=kill:3", "trial.send.after=kill:5"),
        *("outcome.receive.before=kill:5", "outcome.receive.after=kill:3"),
    ),
    (
        *("rank.ready.after=kill:2", "rank.run.before=kill:7", "group.kill.before=kill:2"),
        *("rank.run.after=kill:10", "group.kill.after=kill:2"),
    ),
)


def armed(folder: Path, orders: Sequence[str]) -> dict[str, str]:
    """Returns the environment of a sweep with these failpoints; none without orders."""
    if not orders:
        return {}
    (folder / _PASSES).mkdir(exist_ok=True)
    return {FOLDER_VARIABLE: str(folder / _PASSES), VARIABLE: " ".join(orders)}


def not_reached(folder: Path, orders: Sequence[str]) -> Iterator[str]:
    """Yields the orders whose failpoint did not strike."""
    for order in orders:
        if not (folder / _PASSES / f"{order.partition('=')[0]}.struck").exists():
            yield order


def strikes(folder: Path, events: Sequence[Mapping[str, Any]]) -> list[Injected]:
    """Returns what struck at failpoints, each with the attempts that were under way.

    Args:
        folder: The sweep's.
        events: All that its drivers said, in order.
    """
    times = [datetime.fromisoformat(event["time"]).timestamp() for event in events]
    found = []
    for file in sorted((folder / _PASSES).glob("*.struck")):
        at = float(file.read_text().split()[1])
        count = sum(time <= at for time in times)
        kind = _KINDS.get(file.name.partition(".")[0], _DRIVER)
        found.append(struck(events, kind, count, count))
    return found
