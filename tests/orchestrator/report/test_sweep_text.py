"""The report of a sweep, as text of 80 columns."""

import io
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console

from orchestrator.core.events import SweepEnded
from orchestrator.core.reasons import AllTried
from orchestrator.core.state import SweepState
from orchestrator.report.document import report_document
from orchestrator.report.sweep_document import render_report
from orchestrator.report.sweep_text import regret_sentence
from search_spaces.safety.redaction import redact_texts
from search_spaces.specification.sections import Metric
from search_spaces.trial import Crashed, Estimate, Outcome
from tests.orchestrator.records import make_records, make_space, make_spec, make_state, sweep
from tests.outcomes import (
    CPU_FINGERPRINT,
    every_outcome,
    make_conditions,
    make_costs,
    make_expectation,
    make_measured,
    make_oom,
)

COMMAND = "plimsoll ui demo.yaml"


def told(state: SweepState, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(render_report(state, COMMAND))
    return console.export_text()


def words(state: SweepState) -> str:
    return " ".join(told(state).split())


def test_a_report_of_everything_fits_80_columns() -> None:
    state = make_state(every_outcome())
    lines = told(state).splitlines()

    assert max(map(len, lines)) <= 80
    assert lines[-1].strip() == COMMAND
    text = words(state)
    for part in (
        "trial 2 is best (ddp micro 2 x 4 eager padded fp32): 41.2 ± 0.6 samples/s",
        "2.29 x (2.24 to 2.34) the speed of the baseline (ddp micro",
        "usable memory: 0.475 GiB per rank, 95 % of the limit of 0.500 GiB",
        "= statistically equal to the best (2 plans: trials 2, 3)",
        "measured once: its interval is that of one trial, and trials differ by more",
        "activations and temporaries 0.264 66 %",
        "measured, over usable memory 1 trial 4: its peak of 97.0 % of the limit leaves less than",
        "out of memory 2 trial 1: out of device memory in forward, wanted 131 % of the limit",
        "crashed 1 trial 5: crashed in build: ValueError: [no head] size given",
        "cancelled 1",
    ):
        assert part in text


def test_secrets_that_were_taken_out_are_counted() -> None:
    detail, trace = "refused: password=hunter2", "Authorization: Bearer S3CRETxyz"
    crashed = Crashed(cause="exception", rank=0, phase="build", detail=detail, trace=trace)
    hidden = redact_texts(crashed, ())

    assert "secret" not in words(make_state([make_measured(), crashed]))
    text = words(make_state([make_measured(), hidden, redact_texts(replace(hidden, trace=""), ())]))
    assert "3 secrets taken out of the messages of trials, shown as ***" in text


def test_the_best_plans_gradient_and_energy_are_told_where_they_are_known() -> None:
    known = make_measured(40.0, gradient_norm=1.3587, joules_per_token=0.0213)
    text = words(make_state([known]))

    assert "norm of its first gradient: 1.36" in text
    assert "energy: 0.0213 joules per token" in text
    assert "joules" not in words(make_state([make_measured(40.0)]))


def test_a_gradient_off_that_of_the_first_trial_is_labelled() -> None:
    norms = (2.0, 2.001, 2.2)
    state = make_state([make_measured(20.0 + norm, gradient_norm=norm) for norm in norms])

    assert "gradient 10 % off trial 0's" in words(state)
    assert words(state).count("off trial 0's") == 1


def test_forecasts_stand_below_what_was_measured_and_are_judged() -> None:
    """Errors are a fifth, a quarter and nothing in speed."""
    state = make_state([make_measured(40.0, 0.6), make_measured(20.0, 0.6), make_measured(30.0)])
    expected = [make_expectation(32.0, 0.9), make_expectation(25.0, 0.54), make_expectation(30.0)]
    records = tuple(
        replace(record, forecast=forecast)
        for record, forecast in zip(state.records, expected, strict=True)
    )
    text = words(replace(state, records=records))
    lines = told(replace(state, records=records)).splitlines()

    assert max(map(len, lines)) <= 80
    table = lines[next(index for index, line in enumerate(lines) if "Best plans" in line) :]
    below = next(index for index, line in enumerate(table) if "40.0 ± 0.6" in line) + 1
    assert table[below].split()[-2:] == ["(32.0)", "(0.450)"]
    # speed: 20, 25, 0 %; memory: 50, 10, 17 %
    assert "median forecast error of 3 trials is 20 % in speed and 17 % in peak memory" in text
    assert "forecast" not in words(state)  # where there was none, there is no such column


STATES: tuple[tuple[Sequence[Outcome], str], ...] = (
    ([], "no trial has ended yet"),
    ([make_measured(20.0, 0.98), make_measured(30.0)], "which is over usable memory itself"),
    (
        [make_oom(1.31), make_measured(30.0)],
        "was not measured: out of device memory in forward, wanted 131 %",
    ),
    (
        [make_oom(1.31), make_oom(1.14), make_oom(None)],
        "no plan is feasible; the closest is trial 1, 20 % over usable memory",
    ),
)


@pytest.mark.parametrize(("outcomes", "expected"), STATES)
def test_the_answer_is_compared_with_the_baseline(
    outcomes: Sequence[Outcome], expected: str
) -> None:
    assert expected in words(make_state(outcomes))


def test_what_compiling_took_is_told_apart_from_the_speed() -> None:
    compiled = [make_measured(rate, costs=make_costs(compile_seconds=rate)) for rate in (40, 30)]

    assert (
        "torch.compile took 1 min 10 s in 2 trials, 40 s of it for the best plan;"
        " samples/s exclude it" in words(make_state([make_measured(20.0), *compiled]))
    )
    assert "torch.compile" not in words(make_state([make_measured(20.0)]))


def test_compilation_and_start_are_told_apart_from_the_budget() -> None:
    ended = SweepEnded(reason=AllTried(plans=2), at=1.0, compile_seconds=65.0, start_seconds=9.0)

    text = words(replace(make_state([make_measured(20.0)]), ended=ended))

    assert "before that, DeepSpeed's operators took 1 min 05 s to compile, once" in text
    assert "before that, the first workers took 9 s to start; no budget counts it" in text


def test_resumed_trials_and_throttling_are_told() -> None:
    spec = make_spec(space={"micro_batch": [1, 3, 4], "data": [1, 2], "zero_stage": [0, 3]})
    space = make_space(spec)
    outcome = make_measured(30.0, conditions=make_conditions(("power cap",)))
    records = make_records(space, [make_measured(20.0), outcome])
    *_, (_, state) = sweep(spec, space, records[1:], before=records[:1])

    text = words(state)

    assert "2 trials, 1 from earlier runs" in text
    assert "ended after" in text
    assert "throttled: power cap" in text


def test_the_front_names_what_no_plan_beats_in_all_that_counts() -> None:
    """The front has the fastest, the smallest and one between, but no dominated plan."""
    spec = make_spec(cluster={"workers": 2, "memory_gib": 0.5, "price_per_gpu_hour": 2.0})
    outcomes = [
        make_measured(30.0, 0.3),
        make_measured(50.0, 0.9),
        make_measured(40.0, 0.5),
        make_measured(35.0, 0.6),
    ]

    text = words(make_state(outcomes, spec))

    front = text[text.index("Pareto front:") : text.index("Peak memory")]
    assert "samples/price" in front
    places = [front.index(part) for part in ("10 % 4", "50 % 3", "70 % 2")]
    assert places == sorted(places)
    assert "40 %" not in front


def test_the_answer_says_by_what_it_is_best() -> None:
    outcomes = [make_measured(30.0, 0.3), make_measured(50.0, 0.9)]

    roomy = make_state(outcomes, make_spec(objective={"metric": "headroom"}))
    assert "trial 0 is best by free memory (" in words(roomy)
    assert "statistically equal" not in words(roomy)
    close = [make_measured(30.0, 0.3), make_measured(50.0, 0.302)]
    told = words(make_state(close, make_spec(objective={"metric": "headroom"})))
    assert "equal to the best (2 plans: trials 0, 1); trial 1 is the fastest, 50 samp" in told
    priced = make_spec(
        cluster={"workers": 2, "memory_gib": 0.5, "price_per_gpu_hour": 2.0},
        objective={"metric": "samples_per_price"},
    )
    # 50 samples/s x 3600 s / (2 ranks x 2.0 an hour)
    assert "trial 1 is best by price, at 45,000" in words(make_state(outcomes, priced))


def test_a_plan_that_reaches_too_little_is_told_with_what_was_asked() -> None:
    asked = {"at_least": {"samples_per_second": 60.0}}
    state = make_state([make_measured(30.0), make_measured(50.0)], make_spec(objective=asked))

    text = words(state)

    assert "no plan is feasible; the closest is trial 1" in text
    assert "it reaches 50 samples/s, below the required 60" in text
    assert "measured, below a minimum 2" in text


def regret(metric: Metric, ratio: float, width: float = 0.015) -> str:
    rate = Estimate(value=40.0, low=40.0 * (1 - width), high=40.0 * (1 + width))
    state = make_state(
        [make_measured(40.0, 0.5, samples_per_second=rate)],
        make_spec(objective={"metric": metric}, cluster={"price_per_gpu_hour": 2.0}),
    )
    ended = SweepEnded(reason=AllTried(plans=2), at=1.0, regret_bound=ratio, untried=66)
    return regret_sentence(replace(state, ended=ended))


@pytest.mark.parametrize(
    ("metric", "better", "percent"),
    [
        ("samples_per_second", "is faster", "4.0 %"),
        ("samples_per_price", "gives more samples per unit of price", "4.0 %"),
        ("headroom", "has a lower peak", "3.8 %"),
    ],
)
def test_a_bound_below_what_measurements_can_tell_has_no_number(
    metric: Metric, better: str, percent: str
) -> None:
    words = f"regret bound: no untried plan {better} than the best by more than"
    rest = "(66 untried, 95 % confidence, model-based)"

    assert regret(metric, 1.0) == f"{words} measurements can tell {rest}"
    assert regret(metric, 1.04) == f"{words} {percent} {rest}"


def test_trials_of_another_fingerprint_are_told_and_whether_the_best_is_one() -> None:
    state = make_state([make_measured(40.0), make_measured(50.0), make_measured(45.0)])
    here = replace(CPU_FINGERPRINT, environment=(("driver", "580.65"),))
    there = replace(CPU_FINGERPRINT, environment=(("driver", "575.57"),))
    first, best, last = state.records
    changed = replace(best, fingerprint=there)
    state = replace(state, records=(first, changed, last), fingerprint=here)
    sentence = (
        "1 of 3 trials ran on other hardware or software than the last (driver 575.57, here 580.65)"
    )

    assert f"{sentence}; the best plan was measured only there" in words(state)
    validation = replace(best, fingerprint=here, validation=True)
    assert f"{sentence};" not in words(replace(state, validations=(validation,)))
    assert sentence in words(replace(state, validations=(validation,)))
    assert report_document(state)["other_fingerprints"] == {
        "trials": [best.number],
        "differences": [{"name": "driver", "there": "575.57", "here": "580.65"}],
    }
    assert report_document(replace(state, records=(first, last)))["other_fingerprints"] is None
