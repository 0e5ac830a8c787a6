"""The objective and the Pareto front: cases computed by hand, and comparisons of all pairs."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.budget import incumbent
from orchestrator.core.objective import Objective, best, ranked, ties_of_best
from orchestrator.core.pareto import pareto_front
from orchestrator.core.records import Record
from orchestrator.report.labels import outcome_words, violation_words
from orchestrator.report.sweep_text import _nothing_feasible
from orchestrator.search.observations import constraints_of, observation_of
from search_spaces.specification.schema import GIB, SweepSpec
from search_spaces.trial import Measured, Outcome
from tests.orchestrator.core.values import numbers
from tests.orchestrator.records import make_plan, make_record, make_spec, make_state
from tests.outcomes import make_measured, make_oom

# a rank costs 2 an hour: samples for 1 are rate x 1800 / ranks
PRICED: dict[str, Any] = {"price_per_gpu_hour": 2.0}


def spec_of(**objective: Any) -> SweepSpec:
    return make_spec(cluster=PRICED, objective=objective)


def record_of(
    number: int, rate: float, share: float = 0.5, ranks: int = 2, **changes: Any
) -> Record:
    plan = make_plan(data=ranks, replicas=1, accumulation=1)
    return make_record(number, plan, make_measured(rate, share, **changes))


def test_each_metric_of_a_record() -> None:
    objective, record = Objective.of(spec_of()), record_of(0, 40.0, share=0.6, ranks=4)

    rate = objective.value(record)
    price, free = objective.value(record, "samples_per_price"), objective.value(record, "headroom")
    assert rate is not None
    assert price is not None
    assert free is not None
    assert rate.value == 40.0
    assert price.value == pytest.approx(40 * 3600 / (2 * 4))
    assert price.relative_half_width == pytest.approx(rate.relative_half_width)
    assert free.value == pytest.approx(0.4, abs=1e-6)
    assert Objective().value(record, "samples_per_price") is None
    assert objective.value(make_record(1, make_plan(), make_oom())) is None


def test_a_stated_peak_bounds_the_measured_one() -> None:
    objective = Objective.of(spec_of(memory_gib=2.0))
    memory = replace(make_measured(1.0, 0.5).memory, limit_bytes=4 * GIB)
    plan, outcome = make_plan(), make_measured(1.0, 0.5)
    least, most = (
        make_record(0, plan, replace(outcome, memory=replace(memory, peak_bytes=peak)))
        for peak in (2 * GIB, 2 * GIB + 1)
    )

    assert objective.feasible(least)
    assert Objective.of(spec_of()).feasible(most)
    (violation,) = objective.violations(most)
    assert violation_words(violation) == (
        "its peak is 2.000 GiB, above the 2.000 GiB of objective.memory_gib"
    )
    assert best((most, least), objective) == least
    state = make_state([most.outcome], spec_of(memory_gib=2.0))
    assert "above the 2.000 GiB of objective.memory_gib" in _nothing_feasible(state)
    assert (
        constraints_of(least, objective)["memory"]
        == 0.0
        < constraints_of(most, objective)["memory"]
    )
    # ten times as much as a rank has bounds nothing but by the headroom
    assert Objective.of(spec_of(memory_gib=40.0)).usable_bytes(4 * GIB) == 4 * GIB * 0.95


def test_a_search_is_bounded_by_a_stated_peak() -> None:
    spec, outcome = spec_of(memory_gib=1.9), make_measured(1.0, 0.5)
    memory = replace(outcome.memory, limit_bytes=8 * GIB, peak_bytes=2 * GIB)
    measured = make_record(0, make_plan(), replace(outcome, memory=memory))
    ran_out = make_record(
        1, make_plan(), replace(make_oom(), limit_bytes=4 * GIB, wanted_bytes=None)
    )
    shares = [observation_of(each, 0, spec) for each in (measured, ran_out)]

    # of the 2 GiB that leave 1.9 with the headroom of 5 %
    assert [round(math.exp(each.log_share or 0.0), 6) for each in shares if each] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("metric", "order"),
    [
        ("samples_per_second", [2, 1, 0]),
        ("samples_per_price", [1, 0, 2]),  # 40/2, 36/2 and 60/4 samples/s a rank
        ("headroom", [0, 2, 1]),
        ("tokens_per_joule", [2, 0, 1]),  # trial 1 has no energy
    ],
)
def test_the_metric_says_which_plan_is_best(metric: str, order: list[int]) -> None:
    records = [
        record_of(0, 36.0, share=0.3, joules_per_token=0.5),
        record_of(1, 40.0, share=0.9),
        record_of(2, 60.0, share=0.5, ranks=4, joules_per_token=0.4),
        make_record(3, make_plan(), make_oom()),
    ]
    objective = Objective.of(spec_of(metric=metric))

    assert numbers(ranked(records, objective)) == order
    assert numbers(ties_of_best(records, objective)) == order[:1]


def test_what_is_asked_at_least_is_kept() -> None:
    slow, fast = record_of(0, 30.0, share=0.2), record_of(1, 50.0, share=0.8)
    bounds = {"samples_per_second": 40.0, "samples_per_price": 40_000.0}
    objective = Objective.of(spec_of(metric="headroom", at_least=bounds))

    assert numbers(ranked([slow, fast], objective)) == [1]
    assert list(map(violation_words, objective.violations(slow))) == [
        "it reaches 30 samples/s, below the required 40",
        "it reaches 27,000 samples per unit of price, below the required 40,000",
    ]
    assert not list(objective.violations(fast))
    assert not list(objective.violations(make_record(2, make_plan(), make_oom())))
    (violation,) = replace(objective, headroom=0.25).violations(fast)
    assert "less than 25 % free" in violation_words(violation)


@given(
    st.lists(
        st.tuples(st.sampled_from([10, 20, 30]), st.sampled_from([0.2, 0.4, 0.96]), st.just(2)),
        max_size=12,
    )
)
def test_the_front_is_what_no_other_beats(drawn: list[tuple[float, float, int]]) -> None:
    records = [record_of(number, *values) for number, values in enumerate(drawn)]
    objective = Objective.of(spec_of())

    found = pareto_front(records, objective, ("samples_per_second", "headroom"))

    def beats(one: tuple[float, float, int], other: tuple[float, float, int]) -> bool:
        return one[0] >= other[0] and one[1] <= other[1] and one != other

    feasible = [values for values in drawn if values[1] <= 0.95]
    wanted = {
        number
        for number, values in enumerate(drawn)
        if values in feasible and not any(beats(other, values) for other in feasible)
    }
    assert set(numbers(found)) == wanted
    rates = [drawn[record.number][0] for record in found]
    assert all(one >= other for one, other in pairwise(rates))
    if found:
        assert best(records, objective) is not None


@pytest.mark.parametrize(
    ("metric", "times"),
    [
        *(("samples_per_second", 1.0), ("samples_per_price", 2.0)),
        *(("headroom", 0), ("tokens_per_joule", 0)),
    ],
)
def test_what_a_trial_has_to_beat_is_what_is_wanted(metric: str, times: float) -> None:
    """Half the ranks, at the same price per sample, may take twice as long per step."""
    outcomes: list[Outcome] = [make_measured(40.0)]
    state = make_state(outcomes, spec_of(metric=metric))
    known = state.records[0]
    half = make_plan(data=1, replicas=1)

    found = incumbent(state, half)

    if not times:
        assert found is None
        return
    assert known.plan.world_size == 2
    assert found is not None
    assert found.value == pytest.approx(make_measured(40.0).step_seconds.value * times)


def test_a_plan_that_thrashes_is_no_answer() -> None:
    """Its allocator gave the cache back in measured steps, as one close to its limit does."""
    calm, fast = record_of(0, 40.0), record_of(1, 60.0, share=0.85)
    outcome = fast.outcome
    assert isinstance(outcome, Measured)
    memory = replace(outcome.memory, allocator_retries=3)
    thrashing = replace(fast, outcome=replace(outcome, memory=memory))
    objective = Objective.of(spec_of())

    assert best([calm, fast], objective) == fast
    assert best([calm, thrashing], objective) == calm
    assert thrashing not in ties_of_best([calm, thrashing], objective)
    assert constraints_of(fast, objective)["memory"] <= 0
    assert 0 < constraints_of(thrashing, objective)["memory"] < 0.01
    (violation,) = objective.violations(thrashing)
    assert violation_words(violation) == (
        "it thrashes: with 77 % of the limit reserved, the allocator emptied its cache and retried"
        " 3 times in the measured steps"
    )
    assert "(thrashes: the allocator retried 3 times)" in outcome_words(thrashing.outcome)
    alone = make_state([thrashing.outcome])
    assert alone.best is None
    assert "but it thrashes" in _nothing_feasible(alone)
