"""The simulated trials: same decisions as the measuring loop, and a small run of the table."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.coverage.__main__ import figures_of, measure, simulate, with_history
from benchmarks.coverage.apart import figures
from benchmarks.coverage.noise import MODELS
from search_spaces.hardware.noise import noise_prior
from search_spaces.specification.sections import ObjectiveSpec
from workers.measure.interval import mean_estimate
from workers.measure.loop import STOP, Window, next_window
from workers.measure.steady import warmup_length

TRIALS, CPU = 300, noise_prior("cpu")


@pytest.mark.parametrize("name", ["lognormal 1 %", "first 8 steps + 20 %, noise 3 %"])
def test_a_simulated_trial_ends_where_the_loop_ends(name: str) -> None:
    series = 0.3 * MODELS[name].draw(np.random.default_rng(0), 12)
    trials = simulate(series)
    objective = ObjectiveSpec()

    for row, seconds in enumerate(series.tolist()):
        windows: list[Window] = []
        while not windows or next_window(windows, objective, None, 0.0, 0.1, CPU) != STOP:
            windows.append(_window(seconds[len(windows)]))
        assert len(windows) == trials.windows[row]
        steady = seconds[: len(windows)]
        estimate = mean_estimate(steady[warmup_length(steady) :])
        assert (trials.low[row], trials.high[row]) == pytest.approx((estimate.low, estimate.high))


def _window(seconds: float) -> Window:
    return Window(steps=1, seconds=seconds, phases=(), tokens=1.0, compile_seconds=0.0)


@pytest.mark.cases_by_default(2)
@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("lognormal 1 %", 90),
        ("lognormal 3 %", 90),
        ("AR(1) 0.9, 3 %", 80),
        ("heavy tail: 5 % of steps + 20 % x Pareto 1.8", 80),
    ],
)
def test_the_interval_holds_the_mean(name: str, least: float) -> None:
    model = MODELS[name]
    random = np.random.default_rng(1)

    assert figures_of(model, model.draw(random, TRIALS))["coverage"] >= least
    assert with_history(model, random, TRIALS)["coverage"] >= least


def test_short_trials_on_a_quiet_gpu_tell_plans_apart() -> None:
    cpu = figures(5, CPU)
    gpu = figures(5, replace(noise_prior("cuda"), seconds=25.0))

    assert cpu["told apart"] == 0
    assert gpu["told apart"] > 80
    assert gpu["equal plans told apart"] < 1


@pytest.mark.parametrize(
    "name", [name for name, model in MODELS.items() if model.kind in ("independent", "stall")]
)
def test_the_mean_of_a_model_is_that_of_its_steps(name: str) -> None:
    model = MODELS[name]

    drawn = model.draw(np.random.default_rng(2), 2000)

    assert drawn.mean() == pytest.approx(model.mean, rel=0.01)


@pytest.mark.thorough
def test_a_missed_goal_is_written_as_missed() -> None:
    table = measure(20)

    assert set(MODELS) < set(table["models"])
    met = {goal["name"]: goal["met"] for goal in table["goals"]}
    assert not met["bias in %, stall, each 100th step + 500 %"]
    assert met["bias in %, stall, each 10th step + 50 %"]
