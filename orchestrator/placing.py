"""Between who decides and who runs: each trial gets nodes of its own, or waits for them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from math import inf
from typing import final

from orchestrator.core.failures import reaction_to
from orchestrator.core.messages import AbstractDriver, Assignment, Later, TrialReport
from orchestrator.core.placement import (
    AbstractNodes,
    Node,
    Placement,
    Wanted,
    assign,
    need_of,
    on_kind,
    words,
)
from orchestrator.driver import Driver
from search_spaces.plan import Plan

_NOTICE_SECONDS = 120.0  # after which a cluster knows that a node is gone; or it was not
MOST_LOSSES = 2  # of nodes under one plan, after which it is taken to be the plan that kills them


@final
class PlacingDriver(AbstractDriver):
    """A driver whose trials know on which nodes they run.

    What has been decided waits until there is room for it. A trial whose node was lost is run
    again. Nodes that all groups together need are kept, those that are missed are asked for; a
    trial without any waits for a bounded time.
    """

    def __init__(
        self,
        driver: Driver,
        nodes: AbstractNodes,
        *,
        wanted: Sequence[Wanted],
        wait_seconds: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Nobody is anywhere.

        Args:
            driver: Who decides.
            nodes: What there is.
            wanted: For whom there has to be room at the same time, on each kind of nodes that plans
                tell apart, and whether groups share nodes.
            wait_seconds: How long to wait for nodes that are not there.
            clock: Seconds since the epoch.
        """
        self._driver = driver
        self._nodes = nodes
        self._wanted = {one.accelerator: one for one in wanted}
        self._share = any(one.share for one in wanted)
        self._wait_seconds = wait_seconds
        self._clock = clock
        self._running: dict[int, Placement] = {}
        self._waiting: dict[str, Assignment] = {}  # decided, without room; by kind of nodes
        self._missed_since: dict[str, float] = {}  # room for those, which nobody has
        self._left_out: set[str] = set()  # kinds whose nodes did not come
        self._lost: Counter[str] = Counter()  # nodes under trials of a plan, by its key
        self._shunned: dict[str, Set[str]] = {}  # where workers of a plan died, by its key
        self._gone: dict[str, float] = {}  # nodes that were lost, and when
        self._names: dict[str, str] = {}

    def propose(self, idle: Sequence[Placement] = ()) -> Assignment | Later | None:
        for kind, waiting in list(self._waiting.items()):
            if placed := self._placed(waiting, idle):
                del self._waiting[kind]
                return placed
        there = self._wanted.keys() - self._left_out
        ready = there - self._waiting.keys()
        free = ready & self._kinds_with_room()
        if not free and self._waiting:
            return self._wait(idle)
        given = self._decided(free or ready)
        if isinstance(given, Later) and free < ready:
            given = self._decided(ready)
        if isinstance(given, Later) and self._waiting:
            return self._wait(idle)
        if isinstance(given, Later) and not self._running:
            self._driver.exhaust("nothing is left to try on the nodes that are there")
            return self.propose(idle)
        if not isinstance(given, Assignment):
            return given
        if placed := self._placed(given, idle):
            return placed
        self._waiting[given.request.plan.accelerator] = given
        return self.propose(idle)

    def _decided(self, kinds: Set[str]) -> Assignment | Later | None:
        return self._driver.propose(kinds=None if kinds == self._wanted.keys() else kinds)

    def _placed(self, given: Assignment, idle: Sequence[Placement]) -> Assignment | None:
        """A trial with its nodes; None while there is no room for it."""
        plan, running, up = given.request.plan, list(self._running.values()), self._up()
        here = on_kind(up, plan.accelerator)
        wanted = [one for kind, one in self._wanted.items() if kind not in self._left_out]
        if given.request.proof:  # which runs alone
            wanted = [replace(self._wanted[plan.accelerator], groups=1)]
        self._nodes.want([need_of(one, up, [*running, *idle]) for one in wanted])
        shunned = self._shunned.get(plan.key, frozenset[str]())
        others = [node for node in here if node.id not in shunned]
        found = shunned and assign(plan, others, running, idle, share=self._share)
        found = found or assign(plan, here, running, idle, share=self._share)
        if found is None:
            return None
        self._missed_since.pop(plan.accelerator, None)
        self._running[given.request.number] = found.placement
        there = sorted(
            (node for node in here if node.id in found.placement.nodes), key=lambda node: node.id
        )
        self._names |= {node.id: node.name for node in there}
        return replace(
            given,
            placement=found.placement,
            evicted=found.evicted,
            doors=tuple((node.id, node.door) for node in there),
        )

    def conclude(self, report: TrialReport) -> None:
        placement = self._running.pop(report.number)
        plan = self._driver.plan_of(report.number)
        if not report.lost:
            if reaction_to(report.outcome).again:
                self._shunned[plan.key] = placement.nodes
            self._driver.conclude(report)
            return
        self._lost[plan.key] += 1
        self._gone |= dict.fromkeys(report.lost, self._clock())
        names = ", ".join(self._names.get(node, node) for node in report.lost)
        gone = f"node {names} was lost" if len(report.lost) == 1 else f"nodes {names} were lost"
        if self._lost[plan.key] <= MOST_LOSSES:
            self._driver.interrupt(report.number, f"{gone} under trial {report.number}")
        else:
            note = f"{gone} under this plan, as before: it is taken to be the plan"
            self._driver.conclude(replace(report, notes=(*report.notes, note)))

    def lose(self, number: int, notes: Sequence[str] = ()) -> None:
        self._running.pop(number, None)
        self._driver.lose(number, notes)

    def _kinds_with_room(self) -> set[str]:
        """Kinds with a node that nobody runs on, or where groups share."""
        taken = {node for there in self._running.values() for node in there.nodes}
        free = [node for node in self._up() if self._share or node.id not in taken]
        return {kind for kind in self._wanted if on_kind(free, kind)}

    def _up(self) -> tuple[Node, ...]:
        """Nodes that are up; of one that was just lost the cluster may not know yet."""
        now = self._clock()
        return tuple(
            node
            for node in self._nodes.up()
            if now - self._gone.get(node.id, -inf) > _NOTICE_SECONDS
        )

    def _wait(self, idle: Sequence[Placement]) -> Assignment | Later | None:
        """Keeps what has no room, until it has or nobody believes in it any longer."""
        busy = {self._driver.plan_of(number).accelerator for number in self._running}
        for kind, given in list(self._waiting.items()):
            if kind not in busy and self._is_past_waiting(given):
                del self._waiting[kind]
                self._give_up(given)
                return self.propose(idle)
        return Later()

    def _is_past_waiting(self, given: Assignment) -> bool:
        """Whether room was missed for too long while nobody has it; begins to count."""
        now, plan = self._clock(), given.request.plan
        if plan.accelerator not in self._missed_since:
            self._missed_since[plan.accelerator] = now
            self._driver.note(
                f"trial {given.request.number} waits for room for {_ranks(plan)}, up to"
                f" {self._wait_seconds / 60:g} minutes: there is {words(self._up())}"
            )
        return now - self._missed_since[plan.accelerator] >= self._wait_seconds

    def _give_up(self, given: Assignment) -> None:
        """Ends the sweep, or leaves out the kind of nodes if there are others."""
        number, plan = given.request.number, given.request.plan
        reason = (
            f"there was no room for {_ranks(plan)} for {self._wait_seconds / 60:g} minutes"
            f" (cluster.wait_minutes): there is {words(self._up())}"
        )
        self._left_out.add(plan.accelerator)
        if given.request.proof or self._left_out == self._wanted.keys():
            self._driver.give_up(number, reason)
        else:
            self._driver.note(f"plans for {plan.accelerator} are left out: {reason}")
            self._driver.interrupt(number, reason, again=False)


def _ranks(plan: Plan) -> str:
    ranks = "1 rank" if plan.world_size == 1 else f"{plan.world_size} ranks"
    where = f"{ranks} on {plan.accelerator}" if plan.accelerator else ranks
    return where if plan.tensor == 1 else f"{where}, {plan.tensor} or more of them on each node"
