"""What explanations of a study rest on: its records, and forecasts that these have corrected."""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.core.objective import limit_of
from orchestrator.core.state import SweepState
from orchestrator.planning.asking import question_of
from orchestrator.planning.expected import Expected, expected
from orchestrator.planning.learning import learned_from, study_device
from orchestrator.planning.question import Question, TraceVariants
from orchestrator.planning.sized import Sized, size_plan, size_up
from orchestrator.planning.tracing import Footprints
from search_spaces.estimate import Estimate
from search_spaces.forecast.belief import Belief, shipped_belief
from search_spaces.hardware import find_device
from search_spaces.outcome import Refused
from search_spaces.plan import Plan
from search_spaces.record import Record
from search_spaces.rules import Surroundings, refusal

MOST_RECORDS = 200  # what more of them teach a forecast is less than what learning takes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ground:
    """A study on one kind of nodes, and what is expected of every legal plan there.

    Plans name no kind of nodes here; `records` are those of trials on that kind.
    """

    state: SweepState
    records: tuple[Record, ...]
    question: Question
    belief: Belief
    trace: TraceVariants
    sized: Sized

    @property
    def around(self) -> Surroundings:
        """What rules look at."""
        return self.question.around(self.question.ranks[0])

    def refusal(self, plan: Plan) -> Refused | None:
        """The first rule that forbids a plan, None if it is legal."""
        return refusal(plan, self.around)

    def expected(self, plan: Plan) -> Expected | None:
        """What is expected of a plan, whether the study searches it or not; None if not legal."""
        rows = self.sized.table.rows_of(plan)
        if len(rows):
            return expected(self.sized, int(rows[0]))
        if self.refusal(plan) is not None:
            return None
        return expected(size_plan(self.question, plan, self.trace, self.belief), 0)

    def record_of(self, plan: Plan) -> Record | None:
        """The last trial of a plan; None if it was not tried."""
        return next((one for one in reversed(self.records) if one.plan == plan), None)


def ground_of(state: SweepState, accelerator: str = "") -> Ground:
    """What explains a study, on nodes of one kind where plans tell kinds apart.

    The model is described and traced, no data are read.

    Raises:
        UserError: If the model cannot be found or traced, nobody knows the device that the study
            ran on, or no plan is legal.
    """
    from workers.models import describe

    spec = state.spec.on(accelerator)
    records = tuple(
        replace(record, plan=anywhere(record.plan))
        for record in state.records
        if record.plan.accelerator == accelerator
    )
    device = study_device(spec, records)
    told = spec.cluster.accelerators.get(accelerator)
    if told is not None and told.gpu is not None:
        device = find_device(told.gpu)
    model = describe(spec.model, spec.train)
    question = question_of(spec, model, device, ranks=(_ranks(state),))
    limits = (limit for record in reversed(records) if (limit := limit_of(record)))
    question = question.limited_to(next(limits, question.limit_bytes))
    trace = Footprints(spec, question.kind)
    belief = learned_from(
        shipped_belief(), records[-MOST_RECORDS:], model=model, device=device, trace=trace
    )
    return Ground(
        state=state,
        records=records,
        question=question,
        belief=belief,
        trace=trace,
        sized=size_up(question, question.ranks[0], trace, belief),
    )


def anywhere(plan: Plan) -> Plan:
    """The plan without the kind of nodes that it is for."""
    return replace(plan, accelerator="")


def times(estimate: Estimate, factor: float) -> Estimate:
    """A multiple of an estimate."""
    return Estimate(
        value=estimate.value * factor, low=estimate.low * factor, high=estimate.high * factor
    )


def _ranks(state: SweepState) -> int:
    """Ranks that the sweep had: as asked, or of the largest plan that it tried."""
    asked = state.spec.cluster.workers
    tried = max(record.plan.world_size for record in state.records)
    return tried if asked == "auto" else max(asked, tried)
