"""A recording, from a specification to its last row."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.record.order import Turn, fastest, sample, turns
from benchmarks.record.rows import Subject, row_of, shape_of, varying_knobs
from benchmarks.record.table import Table, keep_spec, set_id
from orchestrator.cluster.runtime import connected
from orchestrator.core.failures import failure_decision
from orchestrator.core.inputs import TrialFinished
from orchestrator.core.instructions import Run
from orchestrator.core.placement import Processes, reason_to_replace
from orchestrator.host import termination_as_interrupt
from orchestrator.report.format import duration
from orchestrator.report.labels import outcome_words, plan_words
from orchestrator.report.reasons import outcome_sentence
from search_spaces.errors import ClusterError, UserError
from search_spaces.plan import Plan
from search_spaces.rules.base import RuleContext
from search_spaces.space import build_space
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


def record_plans(request: Request) -> int:
    """Measures plans until each has as many rows as asked for; returns the number of rows.

    Raises:
        UserError: If model, data, cluster or table cannot be used, or the space is too large.
        KeyboardInterrupt: On Ctrl-C and SIGTERM; all rows measured by then are kept.
    """
    spec = request.spec
    facts = prepare(spec)
    identity = set_id(spec, request.name)
    shape = shape_of(spec.model)
    subject = Subject(name=request.name, spec=spec, facts=facts, shape=shape, set_id=identity)
    table = Table(request.table, identity)
    with connected(spec) as joined:
        cluster = joined.facts
        context = RuleContext(spec=spec, model=facts, cluster=cluster)
        space = build_space(context, spec.cluster.ranks_of(cluster.slots))
        plans = chosen(space.candidates, request.limit)
        knobs = varying_knobs(space.table)
        order = turns(plans, request.repeats, cluster.device)
        table.begin(knobs)
        left = table.missing(order, knobs)
        if request.best is not None:
            named = frozenset(fastest(plans, table.rows, knobs, request.best))
            order, left = (tuple(t for t in some if t.plan in named) for some in (order, left))
        keep_spec(spec, request.name, request.table)
        print(f"{len(order):,} measurements, {len(order) - len(left):,} of them made before")
        with termination_as_interrupt():  # only now: Ray sets a handler of its own
            _measure(left, len(order), subject, table, knobs, cluster.device)
    return len(table.rows)


def chosen(candidates: Sequence[Plan], limit: int | None) -> tuple[Plan, ...]:
    """The plans of a space that are measured: all, or a sample.

    Raises:
        UserError: If there are more than anyone would want to measure by mistake.
    """
    count = len(candidates)
    if limit is None and count > MOST_PLANS:
        raise UserError(
            f"the space has {count:,} plans, more than the {MOST_PLANS:,} that are recorded without"
            " being asked for: name fewer values in space, or measure a sample by --limit N"
        )
    return sample(candidates, limit or count)


def _measure(
    left: tuple[Turn, ...],
    count: int,
    subject: Subject,
    table: Table,
    knobs: tuple[str, ...],
    device: str,
) -> None:
    from orchestrator.cluster.worker_group import WarmGroup

    group, began = _Group(WarmGroup(), subject.spec, device), time.monotonic()
    try:
        for done, turn in enumerate(left, start=1):
            report = group.measure(turn.plan, len(table.rows))
            assert report.fingerprint is not None
            table.add(
                row_of(subject, turn.plan, turn.repeat, report.outcome, report.fingerprint, knobs)
            )
            seconds = (len(left) - done) * (time.monotonic() - began) / done
            print(
                f"[{count - len(left) + done:,} of {count:,}] {plan_words(turn.plan)}:"
                f" {outcome_words(report.outcome)} [about {duration(seconds)} left]",
                flush=True,
            )
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
