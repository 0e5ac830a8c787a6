"""The benchmark of answers: which trials feed a sweep, and which are the truth."""

import numpy as np
import pytest
from optuna.distributions import FloatDistribution

from benchmarks import answers
from benchmarks.search.surfaces import Setup, Surface, Trial


def trial(rate: float | None, number: int = 0, began: float = 0.0) -> Trial:
    return Trial(rate=rate, log_share=-1.0, seconds=1.0, round=number, began=began)


def surface(*trials: tuple[Trial, ...]) -> Surface:
    plans = tuple({"micro_batch": float(plan)} for plan in range(len(trials)))
    return Surface(
        name="made",
        candidates=plans,
        distributions={"micro_batch": FloatDistribution(0, max(len(trials) - 1, 1))},
        trials=trials,
        rate=np.array([one[0].rate or np.nan for one in trials]),
        log_rate=None,
        log_share=None,
        told_by="nothing",
        noise=0.01,
        setup=Setup(parameters=None, limit_gib=None, gpus=None, precision="fp32"),
    )


MADE = surface(
    (trial(10.0), *(trial(rate, at + 1, 10.0 * at) for at, rate in enumerate([10, 20, 40, 80]))),
    (trial(9.0), *(trial(rate, at + 1, 10.0 * at + 5) for at, rate in enumerate([8, 6, 2, 6]))),
    (trial(5.0),),
    (trial(None),),
)


def test_even_rounds_are_the_truth_and_odd_rounds_the_noise_in_order_of_time() -> None:
    truth = np.exp(answers.truth_of(MADE))

    # sqrt(20 x 80), sqrt(6 x 6), the one trial, and a plan that does not run
    assert truth == pytest.approx([40.0, 6.0, 5.0, np.nan], nan_ok=True)
    # rounds 1 and 3 of both plans: 10 and 40 around 20, 8 and 2 around 4; twice as far as the mean
    # of two tells
    assert answers.noise_of(MADE) == pytest.approx(np.sqrt(2) * np.log([0.5, 2.0, 2.0, 0.5]))


def test_a_recorded_sweep_takes_the_odd_rounds_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "TRIALS", 4)
    sweep = answers.recorded(MADE, seed=1)
    for _ in range(3):
        sweep.again(0)
    rates = [told.rate for row, told in sweep.trials if row == 0]

    assert rates in ([10, 40, 10, 40], [40, 10, 40, 10])
    assert sweep.rates[2] == 5.0
    assert 3 not in sweep.rates
    assert sweep.regret(1) == pytest.approx(1 - 6 / 40)


def test_a_quiet_machine_gives_the_best_plan_after_few_repeats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers, "TRIALS", 4)
    quiet = answers.figures([answers.replayed(MADE, seed, 0.005) for seed in range(3)])
    told = quiet["today: leaders measured again"]

    assert (told["far_share"], told["called_noisy"]) == (0.0, 0.0)
    assert told["repeats"] <= 4
