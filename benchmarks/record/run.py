"""A recording, from a specification to its last row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.record.fastest import fastest
from benchmarks.record.model_shape import shape_of
from benchmarks.record.order import Turn, sample, turns
from benchmarks.record.progress import Progress
from benchmarks.record.rows import Subject, row_of, varying_knobs
from benchmarks.record.table import RecordingError, Table, keep_spec, refuse_other_spec, set_id
from orchestrator.cluster.runtime import connected
from orchestrator.core.failures import failure_decision
from orchestrator.core.inputs import TrialFinished
from orchestrator.core.instructions import Run
from orchestrator.core.placement import Processes, reason_to_replace
from orchestrator.host import termination_as_interrupt
from orchestrator.report.reasons import outcome_sentence
from search_spaces.errors import ClusterError
from search_spaces.facts import ClusterFacts, ModelFacts
from search_spaces.plan import Plan
from search_spaces.rules.base import RuleContext
from search_spaces.space import Space, build_space
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import TrialRequest
from workers.prepare import prepare

if TYPE_CHECKING:
    from orchestrator.cluster.worker_group import WarmGroup

MOST_PLANS = 1000  # measured without being told how many
_STARTS = 2  # of a group, before it is given up that one comes up


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A recording to make: where, how often each plan, how many plans (None: all), which.

    Of a recording whose plans have all been measured, `best` names how many of the fastest get
    the repeats that are missing; the others stay as they are.
    """

    spec: SweepSpec
    name: str
    table: Path
    repeats: int = 3
    limit: int | None = None
    best: int | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The result of a recording: rows for a number of plans."""

    table: Path
    plans: int
    rows: int


def record_plans(asked: Request, say: Callable[[str], None]) -> Recorded:
    """Measures plans until each has as many rows as asked for; goes on where it stopped.

    Args:
        asked: What is to be recorded.
        say: Called with each line of progress.

    Raises:
        UserError: If model, data, cluster or table cannot be used, or the space is too large.
        KeyboardInterrupt: On Ctrl-C and SIGTERM; all rows measured by then are kept.
    """
    spec = asked.spec
    facts = prepare(spec)
    identity = set_id(spec, asked.name)
    subject = Subject(
        name=asked.name, spec=spec, facts=facts, shape=shape_of(spec.model), set_id=identity
    )
    table = Table(asked.table, identity, say)
    refuse_other_spec(spec, asked.table)
    with connected(spec) as joined:
        cluster = joined.facts
        space = _space(spec, facts, cluster)
        plans = chosen(space, asked)
        knobs = varying_knobs(space.table)
        order = turns(plans, asked.repeats, cluster.device, asked.seed)
        table.begin(knobs)
        left = table.missing(order, knobs)
        if asked.best is not None:
            named = frozenset(fastest(plans, table.rows, knobs, asked.best))
            order, left = (tuple(t for t in some if t.plan in named) for some in (order, left))
        keep_spec(spec, asked.name, asked.table)
        say(_opening(len(order), asked.repeats, len(order) - len(left)))
        with termination_as_interrupt():  # only now: Ray sets a handler of its own
            _measure(left, subject, table, knobs, cluster, Progress(len(order), len(left), say))
    return Recorded(table=asked.table, plans=len(plans), rows=len(table.rows))


def chosen(space: Space, asked: Request) -> tuple[Plan, ...]:
    """The plans of the space that are measured: all, or a sample.

    Raises:
        RecordingError: If there are more than anyone would want to measure by mistake.
    """
    count = len(space.candidates)
    if asked.limit is None and count > MOST_PLANS:
        raise RecordingError(
            f"the space has {count:,} plans, more than the {MOST_PLANS:,} that are recorded without"
            " being asked for: name fewer values in space, or measure a sample by --limit N"
        )
    return sample(space.candidates, asked.limit or count, asked.seed)


def _space(spec: SweepSpec, facts: ModelFacts, cluster: ClusterFacts) -> Space:
    around = RuleContext(spec=spec, model=facts, cluster=cluster)
    return build_space(around, spec.cluster.ranks_of(cluster.slots))


def _opening(count: int, repeats: int, done: int) -> str:
    before = f"; {done:,} were measured before" if done else ""
    return f"{count // repeats:,} plans, {repeats} times each: {count:,} measurements{before}"


def _measure(
    left: tuple[Turn, ...],
    subject: Subject,
    table: Table,
    knobs: tuple[str, ...],
    cluster: ClusterFacts,
    progress: Progress,
) -> None:
    from orchestrator.cluster.worker_group import WarmGroup

    group = _Group(WarmGroup(), subject.spec, cluster.device)
    try:
        for turn in left:
            report = group.measure(turn.plan, len(table.rows))
            seen = report.fingerprint
            assert seen is not None
            row = row_of(subject, turn.plan, turn.repeat, report.outcome, seen, knobs)
            table.add(row)
            progress.ended(turn, report)
    finally:
        group.stop()


class _Group:
    """A worker group whose workers are replaced when they cannot be used, as a sweep does it."""

    def __init__(self, group: WarmGroup, spec: SweepSpec, device: str) -> None:
        self._group, self._spec, self._device = group, spec, device
        self._present: Processes | None = None

    def measure(self, plan: Plan, number: int) -> TrialFinished:
        """A trial's report; what happens before its workers are up says nothing of its plan.

        Raises:
            ClusterError: If no workers come up.
        """
        for _ in range(_STARTS):
            report = self._run(plan, number)
            if report.fingerprint is not None:
                return report
        raise ClusterError(f"the workers do not come up: {outcome_sentence(report.outcome)}")

    def _run(self, plan: Plan, number: int) -> TrialFinished:
        needed, present = Processes.of(plan, self._device), self._present
        report = self._group.run(
            Run(
                group="recording",
                request=TrialRequest(number=number, plan=plan, spec=self._spec.for_workers),
                device=self._device,
                folder=str(Path.cwd()),
                deadline_seconds=self._spec.budget.trial_seconds,
                fresh=present is not None and reason_to_replace(needed, present) is not None,
            )
        )
        self._present = None if report.workers_ended else needed
        if failure_decision(report.outcome).replace:
            self.stop()
        return report

    def stop(self) -> None:
        """Stops the workers."""
        self._group.stop()
        self._present = None
