"""A sweep of five trials on eight GPUs, and one whose best plan was validated."""

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.core.state import SweepState
from orchestrator.explain.context import ForecastContext
from search_spaces.plan import Plan
from search_spaces.trial import Outcome
from tests.orchestrator.explain.values import a_ground, a_plan, a_state, measured, out_of_memory
from tests.orchestrator.records import make_record

START = a_plan(zero_stage=2)
ANSWER = a_plan(micro_batch=4)
TRIED: tuple[tuple[Plan, Outcome], ...] = (
    (START, measured(20.0, 40)),
    (ANSWER, measured(50.0, 60)),
    (a_plan(), measured(25.0, 30)),  # the best plan with micro-batch 1
    (a_plan(micro_batch=4, checkpoint_ratio=1.0), measured(49.5, 35)),  # equal
    (a_plan(zero_stage=2, micro_batch=4), out_of_memory(90)),
)
Told = tuple[SweepState, ForecastContext | None, str]


def told_of(tried: Sequence[tuple[Plan, Outcome]] = TRIED, *, forecasts: bool = True) -> Told:
    state = a_state(tried)
    if forecasts:
        return state, a_ground(state), ""
    return state, None, "mymodel.py is not there"


def validated(losses: tuple[float, ...]) -> SweepState:
    """Makes a validation of trial 1 with these losses, where trial 0 had 3, 2 and 1."""
    kept = replace(measured(20.0, 40), losses=(3.0, 2.0, 1.0))
    tried = [(START, kept), (ANSWER, replace(measured(50.0, 60), losses=(3.0, 2.0, 1.0)))]
    run = make_record(1, ANSWER, replace(measured(50.0, 60), losses=losses))
    return a_state(
        tried, [replace(run, validation=True)], validation={"enabled": True, "repeats": 0}
    )
