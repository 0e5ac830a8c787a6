"""A controller that tests drive by hand, on nodes of which each takes two ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any

from orchestrator.core.controller_state import ControllerState
from orchestrator.core.events import SweepStarted
from orchestrator.core.handle import handle, start
from orchestrator.core.inputs import (
    DriverStarted,
    GroupsEnded,
    Input,
    NodesChanged,
    PlanProposed,
    StopRequested,
    Tick,
    TrialFinished,
    TrialOpened,
)
from orchestrator.core.instructions import (
    Abandon,
    Announce,
    Instruction,
    Open,
    Propose,
    Run,
    StartGroup,
    Store,
)
from orchestrator.core.placement import CapacityRequest, Node
from orchestrator.core.reasons import Sampled
from search_spaces.plan import Plan
from search_spaces.trial import Outcome, Stopped
from tests.orchestrator.records import BEGAN, make_space, make_spec
from tests.outcomes import CPU_FINGERPRINT, LIMIT_BYTES, make_measured

SPEC = make_spec(
    space={"micro_batch": [1, 2, 4], "data": [1, 2], "batching": ["padded"]},
    budget={"trials": 2, "minutes": 600, "trial_seconds": 60},
    validation={"enabled": True, "repeats": 0},
)
SPACE = make_space(SPEC)
BASELINE = SPACE.baseline
PLANS = len(SPACE.candidates)
PAIRS = [plan for plan in SPACE.candidates if plan.world_size == 2 and plan != BASELINE]
LONE = [plan for plan in SPACE.candidates if plan.world_size == 1]
ANY_REASON = Sampled(sampler="random")
STOPPED = Stopped(by="Ctrl-C")
FOUND = {"device": "cpu", "folder": "/here", "request": CapacityRequest(groups=2, ranks=2)}
OWN = {field.name for field in fields(DriverStarted)}


class Phase(Enum):
    """Phase of a sweep."""

    SEARCHING = "searching"  # trials are started
    DRAINING = "draining"  # the search has ended, and trials still run
    REMEASURING = "remeasuring"  # the leaders are measured again
    VALIDATING = "validating"  # the best plans are validated, one after the other
    DONE = "done"  # nothing is started any more


def phase_of(state: ControllerState) -> Phase:
    if state.ended:
        return Phase.DONE
    if state.stop_reason is None:
        return Phase.SEARCHING
    running = state.sweep.running
    if any(not trial.validation and not trial.is_repeat for trial in running):
        return Phase.DRAINING
    return Phase.REMEASURING if any(one.is_repeat for one in running) else Phase.VALIDATING


def driver(**changes: Any) -> DriverStarted:
    """Returns a first driver for two groups, with a budget of two trials."""
    spec = changes.get("spec", SPEC)
    space = SPACE if spec is SPEC else make_space(spec)
    base: dict[str, Any] = {
        "study": "demo",
        "spec": spec,
        "space": space,
        "records": (),
        "memory_limit_bytes": LIMIT_BYTES,
        "groups": 2,
        "at": BEGAN,
    }
    own = {name: changes.pop(name) for name in OWN & changes.keys()}
    return DriverStarted(sweep=SweepStarted(**{**base, **changes}), **{**FOUND, **own})


def budget_of(trials: int) -> Any:
    return SPEC.model_copy(update={"budget": SPEC.budget.model_copy(update={"trials": trials})})


def nodes(*names: str, slots: int = 2) -> tuple[Node, ...]:
    return tuple(Node(id=name, slots=slots, name=name, address=f"{name}:1") for name in names)


def contents(state: ControllerState) -> dict[str, Any]:
    """Returns the attributes of a state, with mappings copied."""
    values = {field.name: getattr(state, field.name) for field in fields(state)}
    return {
        name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()
    }


def kinds(instructions: Sequence[Instruction]) -> list[type]:
    """Returns the types of instructions; of an announcement, the type of its event."""
    return [type(one.event) if isinstance(one, Announce) else type(one) for one in instructions]


@dataclass
class Driven:
    """A controller that a test gives inputs, each twice: a decision depends on nothing else."""

    state: ControllerState
    now: float = BEGAN
    opened: int = 0

    @classmethod
    def by(cls, started: DriverStarted) -> Driven:
        return cls(start(started)[0], opened=len(started.sweep.records))

    def give(self, given: Input) -> tuple[Instruction, ...]:
        before = contents(self.state)
        state, instructions = handle(self.state, given)
        assert handle(self.state, given) == (state, instructions)
        assert contents(self.state) == before
        self.state = state
        if any(isinstance(one, Store | Abandon) for one in instructions):
            assert not any(isinstance(one, Propose | Open | Run) for one in instructions)
            instructions += self.give(Tick(at=self.now))  # as the driver does after a write
        elif isinstance(given, TrialFinished | GroupsEnded):
            assert not any(isinstance(one, Propose | Open | Run) for one in instructions)
            instructions += self.give(Tick(at=self.now))  # as the driver does after each report
        elif any(isinstance(one, StartGroup) for one in instructions):
            assert kinds(instructions).count(StartGroup) == 1
            instructions += self.give(Tick(at=self.now))  # as Ray Tune does for the next group
        return instructions

    def show(self, *there: Node) -> tuple[Instruction, ...]:
        return self.give(NodesChanged(nodes=there, at=self.now))

    def tick(self, seconds: float = 0.0) -> tuple[Instruction, ...]:
        self.now += seconds
        return self.give(Tick(at=self.now))

    def propose(self, plan: Plan, **changes: Any) -> tuple[Instruction, ...]:
        return self.give(PlanProposed(plan=plan, reason=ANY_REASON, at=self.now, **changes))

    def open(self) -> tuple[Instruction, ...]:
        self.opened += 1
        return self.give(TrialOpened(number=self.opened - 1, at=self.now))

    def begin(self, plan: Plan) -> tuple[Instruction, ...]:
        """Proposes a plan and opens its trial."""
        self.propose(plan)
        return self.open()

    def report(
        self, group: str, number: int, outcome: Outcome | None = None, **changes: Any
    ) -> tuple[Instruction, ...]:
        self.now += 10
        report = TrialFinished(
            group=group,
            number=number,
            validation=False,
            outcome=outcome or make_measured(),
            fingerprint=CPU_FINGERPRINT,
            started_at=self.now - 9,
            ended_at=self.now - 1,
            at=self.now,
        )
        return self.give(replace(report, **changes))

    def end(self, *groups: str, lost_contact: bool = False) -> tuple[Instruction, ...]:
        return self.give(GroupsEnded(groups=groups, lost_contact=lost_contact, at=self.now))

    def stop(self) -> tuple[Instruction, ...]:
        return self.give(StopRequested(cause=STOPPED, at=self.now))


def searching(**changes: Any) -> Driven:
    """Returns a controller with two nodes on which two trials run."""
    driven = Driven.by(driver(**changes))
    driven.show(*nodes("a", "b"))
    driven.open()
    driven.begin(PAIRS[0])
    assert [group.trial for group in driven.state.groups.values()] == [0, 1]
    return driven
