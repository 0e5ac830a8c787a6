"""`PlimsollSampler` in plain Optuna studies."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from orchestrator.search.encoding import features
from orchestrator.search.observations import CONSTRAINT
from orchestrator.search.plimsoll_sampler import REASON, PlimsollSampler

SPACE = {
    "stage": CategoricalDistribution((0, 2, 3)),
    "batch": IntDistribution(1, 64, log=True),
    "ratio": FloatDistribution(0, 1, step=0.5),
}
CANDIDATES = [
    dict(zip(SPACE, values, strict=True))
    for values in itertools.product((0, 2, 3), (1, 2, 4, 8, 16, 32, 64), (0.0, 0.5, 1.0))
]


def speed(params: dict[str, Any]) -> float:
    return float(params["batch"] ** 0.3 * (1 - 0.25 * params["ratio"]) * (0.9 ** params["stage"]))


def share(params: dict[str, Any]) -> float:
    """Peak as a share of the limit: states by stage, activations by batch and ratio."""
    states = {0: 0.5, 2: 0.3, 3: 0.15}[params["stage"]]
    return states + params["batch"] * 0.03 * (1 - 0.9 * params["ratio"])


LOG_SPEED = np.log([speed(c) for c in CANDIDATES])
ROOT = Path(__file__).parents[3]
BEST = max(speed(c) for c in CANDIDATES if share(c) <= 1)


def run(sampler: PlimsollSampler, trials: int) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for _ in range(trials):
        trial = study.ask(SPACE)
        trial.set_constraint(CONSTRAINT, share(trial.params) - 1)
        if share(trial.params) > 1:
            study.tell(trial, state=TrialState.PRUNED)
        else:
            study.tell(trial, speed(trial.params))
    return study


def best_of(study: optuna.Study) -> float:
    done = study.get_trials(states=(TrialState.COMPLETE,))
    return max(trial.values[0] for trial in done)


@pytest.mark.parametrize("seed", range(3))
def test_it_finds_the_best_of_given_candidates_soon(seed: int) -> None:
    study = run(PlimsollSampler(CANDIDATES, SPACE, seed=seed), 15)

    assert best_of(study) >= 0.98 * BEST
    keys = [tuple(trial.params.values()) for trial in study.trials]
    assert len(set(keys)) == 15
    assert all(trial.params in CANDIDATES for trial in study.trials)


def test_with_forecasts_it_is_there_in_three() -> None:
    sampler = PlimsollSampler(
        CANDIDATES,
        SPACE,
        log_rate=np.log([speed(c) for c in CANDIDATES]),
        log_share=np.log([share(c) for c in CANDIDATES]),
        seed=0,
    )
    study = run(sampler, 3)

    assert best_of(study) == pytest.approx(BEST)
    assert len(study.get_trials(states=(TrialState.PRUNED,))) <= 1


def test_each_trial_says_why() -> None:
    study = run(PlimsollSampler(CANDIDATES, SPACE, seed=0), 3)
    reasons = [trial.user_attrs[REASON] for trial in study.trials]

    assert "expected to be the fastest that fits" in reasons[0]
    assert all("likely to fit" in reason for reason in reasons)
    assert "than the best" in reasons[2]
    assert "against the best" in reasons[2]


def test_any_study_can_be_asked() -> None:
    """Neither candidates nor distributions, suggestions one by one, and times to minimize."""
    study = optuna.create_study(direction="minimize", sampler=PlimsollSampler(seed=1))

    def seconds(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", -2, 2)
        y = trial.suggest_int("y", 0, 10)
        return 1 + (x - 0.7) ** 2 + 0.1 * abs(y - 3)

    study.optimize(seconds, n_trials=25)

    assert study.best_value < 1.15


def test_the_example_of_the_documentation_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The example finds the optimum of synthetic training in a dozen trials."""
    text = (ROOT / "docs" / "search.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)

    def train_some_steps(batch: int, recomputed: float) -> tuple[float, float]:
        tried = {"stage": 0, "batch": batch, "ratio": recomputed}
        if share(tried) > 1:
            raise MemoryError
        return speed(tried), share(tried)

    names: dict[str, Any] = {"train_some_steps": train_some_steps, "limit": 1.0}
    exec(example, names)

    study = names["study"]
    grid = itertools.product((0,), range(1, 65), (0.0, 0.25, 0.5, 0.75, 1.0))
    points = [dict(zip(SPACE, point, strict=True)) for point in grid]
    assert study.best_value >= 0.95 * max(speed(p) for p in points if share(p) <= 1)
    assert len(study.get_trials(states=(TrialState.PRUNED,))) <= 4
    assert "likely to fit" in capsys.readouterr().out


def test_failures_teach_what_to_leave_alone() -> None:
    """Large batches fail for reasons other than memory, and are forecast to be the fastest."""
    study = optuna.create_study(
        direction="maximize", sampler=PlimsollSampler(CANDIDATES, SPACE, log_rate=LOG_SPEED, seed=0)
    )
    for _ in range(12):
        trial = study.ask(SPACE)
        if trial.params["batch"] >= 16:
            study.tell(trial, state=TrialState.FAIL)
        else:
            study.tell(trial, speed(trial.params))

    # told nothing, it goes through the 27 that fail one after the other
    assert best_of(study) == max(speed(c) for c in CANDIDATES if c["batch"] < 16)


def test_what_is_noisy_is_trusted_less() -> None:
    """The same two values lead to another prediction if each may be off by a third."""
    told = {}
    for noise in (0.01, 0.3):
        study = optuna.create_study(
            direction="maximize", sampler=PlimsollSampler(CANDIDATES, SPACE, noise=noise, seed=0)
        )
        for params, value in ((CANDIDATES[0], 1.0), (CANDIDATES[-1], 8.0)):
            study.enqueue_trial(params)
            study.tell(study.ask(SPACE), value)
        study.ask(SPACE)
        reason = study.trials[-1].user_attrs[REASON]
        told[noise] = int(re.findall(r"expected (\d+)% ", reason)[0])

    assert told[0.01] != told[0.3]


def test_trials_under_way_are_not_repeated() -> None:
    study = optuna.create_study(
        direction="maximize", sampler=PlimsollSampler(CANDIDATES, SPACE, seed=0)
    )
    asked = [study.ask(SPACE).params for _ in range(6)]

    assert len({tuple(params.values()) for params in asked}) == 6


def test_when_all_were_tried_it_goes_on() -> None:
    few = CANDIDATES[:2]
    study = run(PlimsollSampler(few, SPACE, seed=0), 3)

    assert len(study.trials) == 3


def test_points_are_as_far_apart_as_their_values() -> None:
    one, double, most, other = features(
        [
            {"stage": 0, "batch": 1, "ratio": 0.0},
            {"stage": 0, "batch": 8, "ratio": 0.0},
            {"stage": 0, "batch": 64, "ratio": 0.0},
            {"stage": 3, "batch": 1, "ratio": 0.0},
        ],
        SPACE,
    )

    assert np.linalg.norm(double - one) == pytest.approx(0.5)  # half the way in powers
    assert np.linalg.norm(most - one) == pytest.approx(1.0)
    assert np.linalg.norm(other - one) == pytest.approx(1.0)


@pytest.mark.parametrize(("direction", "scale"), [("maximize", 1.0), ("minimize", 1000.0)])
def test_values_of_any_sign_are_searched(direction: str, scale: float) -> None:
    """One value is a penalty far from all others."""
    sign = 1 if direction == "maximize" else -1
    study = optuna.create_study(direction=direction, sampler=PlimsollSampler(seed=0))

    def value(trial: optuna.Trial) -> float:
        x, y = trial.suggest_int("x", -10, 10), trial.suggest_int("y", 0, 10)
        lost = (x - 3) ** 2 / 100 + (y - 4) ** 2 / 50
        return sign * scale * (-1e6 if x == -10 else 0.5 - lost)

    study.optimize(value, n_trials=25)

    assert sign * study.best_value >= 0.49 * scale  # random draws reach 0.48
    assert any(trial.value * sign < 0 for trial in study.trials)
    reasons = [trial.user_attrs.get(REASON, "") for trial in study.trials]
    assert re.fullmatch(r"expected [-.e+\d]+, the best so far is [-.e+\d]+; .*", reasons[-1])


def test_forecasts_are_of_values_above_0() -> None:
    study = optuna.create_study(
        direction="maximize", sampler=PlimsollSampler(CANDIDATES, SPACE, log_rate=LOG_SPEED, seed=0)
    )
    study.tell(study.ask(SPACE), -1.0)

    with pytest.raises(
        ValueError, match=r"has the value -1, but .* log_rate, .*leave log_rate out"
    ):
        study.ask(SPACE)


def test_two_objectives_are_refused_with_what_to_do() -> None:
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=PlimsollSampler())

    with pytest.raises(ValueError, match=r"one objective, study .* has 2: .*trial\.set_constraint"):
        study.optimize(lambda trial: (trial.suggest_int("x", 0, 3), 1.0), n_trials=1)


def test_a_study_that_only_ran_out_of_memory_is_learned_from() -> None:
    """No trial is complete; only pruned ones know the parameters."""
    study = optuna.create_study(direction="maximize", sampler=PlimsollSampler(seed=0))
    study.enqueue_trial({"batch": 40})
    study.enqueue_trial({"batch": 50})
    for _ in range(2):
        trial = study.ask({"batch": IntDistribution(1, 64)})
        trial.set_constraint(CONSTRAINT, trial.params["batch"] / 16 - 1)
        study.tell(trial, state=TrialState.PRUNED)

    study.ask({"batch": IntDistribution(1, 64)})

    assert "likely to fit" in study.trials[-1].user_attrs[REASON]
    assert study.trials[-1].params["batch"] < 40


def test_the_first_points_lie_at_opposite_corners() -> None:
    """The first trial is enqueued; the second and third are as far away as the grid allows."""
    study = optuna.create_study(direction="maximize", sampler=PlimsollSampler(seed=0))
    study.enqueue_trial({"x": 0, "y": 0})

    study.optimize(
        lambda trial: 1.0 + trial.suggest_int("x", 0, 4) + trial.suggest_int("y", 0, 4), 3
    )

    first, second, third = ((trial.params["x"], trial.params["y"]) for trial in study.trials)
    assert (first, second) == ((0, 0), (4, 4))
    assert third in {(0, 4), (4, 0)}
