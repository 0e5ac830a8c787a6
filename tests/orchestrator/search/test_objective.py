"""The objective of the search against the objective that records are scored by."""

from typing import Any

import numpy as np
import pytest

from orchestrator.core.objective import Objective
from orchestrator.search.observations import Observation
from orchestrator.search.plimsoll import search_objective
from orchestrator.search.surrogate import Prediction
from search_spaces.plan_table import PlanTable
from search_spaces.trial import Measured
from tests.orchestrator.records import make_plan, make_record, make_spec
from tests.outcomes import make_measured

# of 1, 2 and 4 ranks; fast, slow and roomy
PLANS = tuple(make_plan(data=ranks, replicas=1, accumulation=1) for ranks in (1, 2, 4))
OUTCOMES = (make_measured(20.0, 0.9), make_measured(30.0, 0.6), make_measured(50.0, 0.3))
PRICED = {"price_per_gpu_hour": 2.0}
ROWS = np.arange(len(PLANS))


def goal_of(**objective: Any) -> Objective:
    return Objective.of(make_spec(cluster=PRICED, objective=objective))


def prediction(logs: list[float]) -> Prediction:
    return Prediction(np.array(logs), np.full(len(logs), 0.01))


def shares(outcomes: tuple[Measured, ...]) -> list[float]:
    return [float(np.log(outcome.memory.share)) for outcome in outcomes]


def rates(outcomes: tuple[Measured, ...]) -> list[float]:
    return [float(np.log(outcome.samples_per_second.value)) for outcome in outcomes]


@pytest.mark.parametrize("metric", ["samples_per_second", "samples_per_price"])
def test_what_is_expected_is_what_records_would_show(metric: str) -> None:
    objective = goal_of(metric=metric)
    aim = search_objective(objective, PlanTable.of(PLANS))

    expected, _ = aim.expected(prediction(rates(OUTCOMES)), prediction(shares(OUTCOMES)), ROWS)

    shown = [objective.value(make_record(0, p, o)) for p, o in zip(PLANS, OUTCOMES, strict=True)]
    assert np.exp(expected) == pytest.approx([one.value for one in shown if one], rel=1e-6)


@pytest.mark.parametrize(
    "lower_bound",
    [
        {"samples_per_second": 25.0},
        {"samples_per_price": 24000.0},
        {"samples_per_second": 25.0, "samples_per_price": 24000.0},
    ],
)
@pytest.mark.parametrize("headroom", [0.05, 0.5])
def test_what_answers_is_what_falls_short_of_nothing(
    lower_bound: dict[str, float], headroom: float
) -> None:
    """Samples per price: 36,000, 27,000 and 22,500."""
    objective = goal_of(at_least=lower_bound, headroom=headroom)
    aim = search_objective(objective, PlanTable.of(PLANS))

    for row, (plan, outcome) in enumerate(zip(PLANS, OUTCOMES, strict=True)):
        observation = Observation(
            row=row, log_rate=rates(OUTCOMES)[row], log_share=shares(OUTCOMES)[row]
        )
        record = make_record(0, plan, outcome)
        assert aim.answered(observation) is objective.feasible(record)
