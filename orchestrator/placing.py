"""Between who decides and who runs: each trial gets nodes of its own, or waits for them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import final

from orchestrator.core.placement import Node, Placement, assign, words
from orchestrator.driver import Driver
from orchestrator.nodes import AbstractNodes
from orchestrator.trials import AbstractDriver, Assignment, Later, TrialReport
from search_spaces.plan import Plan

_NOTICE_SECONDS = 120.0  # after which a cluster knows that a node is gone; or it was not
MOST_LOSSES = 2  # of nodes under one plan, after which it is taken to be the plan that kills them


@final
class PlacingDriver(AbstractDriver):
    """A driver whose trials know on which nodes they run.

    What has been decided waits until there is room for it. A trial whose node was lost is run
    again; nodes that are missed are asked for and awaited for a bounded time.
    """

    def __init__(
        self,
        driver: Driver,
        nodes: AbstractNodes,
        *,
        share: bool,
        wait_seconds: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Nobody is anywhere.

        Args:
            driver: Who decides.
            nodes: What there is.
            share: Whether groups may share nodes.
            wait_seconds: How long to wait for nodes that are not there.
            clock: Seconds since the epoch.
        """
        self._driver = driver
        self._nodes = nodes
        self._share = share
        self._wait_seconds = wait_seconds
        self._clock = clock
        self._running: dict[int, Placement] = {}
        self._waiting: Assignment | None = None  # decided, and without room
        self._missed_since: float | None = None
        self._lost: Counter[str] = Counter()  # nodes under trials of a plan, by its key
        self._gone: dict[str, float] = {}  # nodes that were lost, and when
        self._names: dict[str, str] = {}

    def propose(self, idle: Sequence[Placement] = ()) -> Assignment | Later | None:
        given = self._waiting or self._driver.propose()
        if not isinstance(given, Assignment):
            return given
        self._waiting = None
        plan = given.request.plan
        running = list(self._running.values())
        nodes = {node.id: node for node in self._up()}
        found = assign(plan, tuple(nodes.values()), running, idle, share=self._share)
        if found is None:
            return self._later(given, idle)
        self._missed_since = None
        self._running[given.request.number] = found.placement
        there = [nodes[node] for node in sorted(found.placement.nodes)]
        self._names |= {node.id: node.name for node in there}
        return replace(
            given,
            placement=found.placement,
            evicted=found.evicted,
            doors=tuple((node.id, node.door) for node in there),
        )

    def conclude(self, report: TrialReport) -> None:
        del self._running[report.number]
        if not report.lost:
            self._driver.conclude(report)
            return
        plan = self._driver.plan_of(report.number)
        self._lost[plan.key] += 1
        self._gone |= dict.fromkeys(report.lost, self._clock())
        names = ", ".join(self._names.get(node, node) for node in report.lost)
        gone = f"node {names} was lost" if len(report.lost) == 1 else f"nodes {names} were lost"
        if self._lost[plan.key] <= MOST_LOSSES:
            self._driver.interrupt(report.number, f"{gone} under trial {report.number}")
        else:
            note = f"{gone} under this plan, as before: it is taken to be the plan"
            self._driver.conclude(replace(report, notes=(*report.notes, note)))

    def lose(self, number: int) -> None:
        self._running.pop(number, None)
        self._driver.lose(number)

    def _up(self) -> tuple[Node, ...]:
        """Nodes that are up; of one that was just lost the cluster may not know yet."""
        now = self._clock()
        return tuple(
            node
            for node in self._nodes.up()
            if now - self._gone.get(node.id, -inf) > _NOTICE_SECONDS
        )

    def _later(self, given: Assignment, idle: Sequence[Placement]) -> Assignment | Later | None:
        """Keeps what has no room, until it has or nobody believes in it any longer."""
        if self._running:
            self._waiting = given
            return Later()
        now, plan = self._clock(), given.request.plan
        if self._missed_since is None:
            self._missed_since = now
            self._nodes.ask_for(plan.world_size)
            self._driver.note(
                f"trial {given.request.number} waits for room for {_ranks(plan)}, up to"
                f" {self._wait_seconds / 60:g} minutes: there is {words(self._up())}"
            )
        if now - self._missed_since < self._wait_seconds:
            self._waiting = given
            return Later()
        self._driver.give_up(
            given.request.number,
            f"there was no room for {_ranks(plan)} for {self._wait_seconds / 60:g} minutes"
            f" (cluster.wait_minutes): there is {words(self._up())}",
        )
        return self.propose(idle)


def _ranks(plan: Plan) -> str:
    ranks = "1 rank" if plan.world_size == 1 else f"{plan.world_size} ranks"
    return ranks if plan.tensor == 1 else f"{ranks}, {plan.tensor} or more of them on each node"
