"""Quality of a sweep's answer by the product's rule, and by the highest measurement.

    python -m benchmarks.answers [--seeds N] [--out FILE]

The surfaces (`benchmarks/surfaces/rounds`, made by `benchmarks.record`) hold every legal plan of a
space, and the fastest in rounds, each in an order of its own. The odd rounds feed the sweeps, the
even ones are the truth: the mean logarithm of a plan's rate in them (of a plan in no round, of its
one trial). Plimsoll's search runs 40 trials and knows only the interval that a trial has. Then two
rules answer on the same trials: the highest measurement, and the product's
(`orchestrator.core.repeats`).

- `recorded`: each trial and repeat is the plan's next trial of the feeding rounds, from a round
  that the seed draws, in the order of time.
- `replayed`: the truth, with the noise of the feeding rounds in the order of time: how much each
  trial differed from the mean of its plan. The truth is exact, and there are as many draws as
  trials were recorded. `quiet` is the same with a twentieth of the noise.

Of each: how often the answer is more than 5 % slower than the best plan that was tried, the mean
regret, and the number of repeats; of the product's rule, too, in how many of the intervals that
reports show after its repeats the true speed lies, and how often `noisy` is said of the machine.
Figures are means over surfaces, with 95 % intervals by bootstrap over surfaces.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import count, repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.outcomes import measured
from benchmarks.output import command_line, write
from benchmarks.published.product import forecaster_without
from benchmarks.search.competitors.ours import observation_of, pool_of
from benchmarks.search.surfaces import Surface, Trial, surfaces_in
from orchestrator.core.best import leaders
from orchestrator.core.objective import Objective
from orchestrator.core.reasons import Remeasures, Sampled
from orchestrator.core.records import Record
from orchestrator.core.repeats import FINALISTS, next_repeat
from orchestrator.core.speeds import Speeds
from orchestrator.search.observations import Observation, with_noise
from orchestrator.search.search import Search
from search_spaces.plan import Plan
from search_spaces.specification.schema import GIB, SweepSpec
from tests.plans import ddp_plan

TRIALS, FAR, QUIET = 40, 0.05, 0.05
_RECORDED = Path(__file__).parent / "surfaces" / "rounds"
_SECONDS = 10.0  # of a trial in a sweep
Numbers = NDArray[np.float64]
Measure = Callable[[int], Trial]
SPEC = SweepSpec.model_validate(
    {
        "model": "gpt2",
        "train": {"global_batch": 512, "sequence_length": 1024},
        "validation": {"enabled": True},
    }
)
_BASE = ddp_plan(data=1, precision="bf16")


class Sweep:
    """A sweep on a surface: its trials so far, and the search that chose them."""

    def __init__(self, surface: Surface, truth: Numbers, measure: Measure, seed: int) -> None:
        """Runs the search.

        Args:
            surface: The candidates.
            truth: The logarithm of each one's true rate, of shape (candidates,).
            measure: Measures a candidate once more.
            seed: Of the search.
        """
        self._search, self._measure = Search(pool_of(surface), seed), measure
        self.trials, free = list[tuple[int, Trial]](), np.ones(len(surface), dtype=bool)
        for _ in range(TRIALS):
            row = self._search.choose(self._observed(), free).row
            free[row] = False
            self.again(row)
        self.rates = {row: trial.rate for row, trial in self.trials if trial.rate is not None}
        self.truth = truth

    def again(self, row: int) -> None:
        """Measures a candidate."""
        self.trials.append((row, self._measure(row)))

    def leaders(self, speeds: Speeds) -> list[int]:
        """Returns the rows that lead by all trials so far."""
        known, noise = self._observed(), speeds.noise
        enough = float(np.log1p(SPEC.objective.interval))
        if noise.degrees:
            known = with_noise(known, noise)
        quantile = noise.quantile if noise.degrees >= FINALISTS else None
        return self._search.leaders(known, FINALISTS, enough, quantile)

    def regret(self, row: int) -> float:
        """Returns how much slower a plan is than the best that was tried, as a share."""
        best = max(self.truth[one] for one in self.rates)
        return float(1 - np.exp(self.truth[row] - best))

    def _observed(self) -> list[Observation]:
        return [observation_of(*one, _SECONDS * at) for at, one in enumerate(self.trials)]


class Answer(NamedTuple):
    """The answer of a rule: the plan's row, and the repeats that it took.

    `held` says of each measured plan if the interval that reports show holds its true speed, and is
    empty for a rule without intervals; `noisy` if the machine is called so.
    """

    row: int
    repeats: int = 0
    held: tuple[bool, ...] = ()
    noisy: bool = False


def highest_measured(sweep: Sweep) -> Answer:
    """The plan with the highest single measurement."""
    return Answer(row=max(sweep.rates, key=sweep.rates.__getitem__))


def rule_today(sweep: Sweep) -> Answer:
    """The product's own: its finalists, its repeats, its ranking."""
    plans = {row: replace(_BASE, micro_batch=row + 1) for row in sweep.rates}
    rows = {plan: row for row, plan in plans.items()}
    records, baseline = list(_records(sweep, plans)), plans[next(iter(sweep.rates))]
    while True:
        speeds = Speeds.of(records, (), Objective.of(SPEC))
        found = [plans[row] for row in sweep.leaders(speeds)]
        plan = next_repeat(records, (), found, baseline, SPEC)
        if plan is None:
            break
        sweep.again(rows[plan])
        records = list(_records(sweep, plans))
    return Answer(
        row=rows[leaders(records, (), {}, SPEC)[0].plan],
        repeats=len(sweep.trials) - TRIALS,
        held=tuple(
            bool(abs(speed.mean - sweep.truth[rows[plan]]) <= speeds.half_width(plan))
            for plan, speed in speeds.by_plan.items()
        ),
        noisy=speeds.noise.is_noisy,
    )


RULES: Mapping[str, Callable[[Sweep], Answer]] = {
    "highest measured": highest_measured,
    "today: leaders measured again": rule_today,
}


def _records(sweep: Sweep, plans: Mapping[int, Plan]) -> Iterator[Record]:
    """Yields the sweep's trials that ran as a study keeps them."""
    first = dict[int, int]()
    for number, (row, told) in enumerate(sweep.trials):
        if told.rate is None:
            continue
        trial = first.setdefault(row, number)
        yield Record(
            number=number,
            plan=plans[row],
            outcome=measured(
                told.rate,
                batch=SPEC.train.global_batch,
                tokens=1024,
                half_width=told.half_width,
                peak_bytes=GIB,
                limit_bytes=16 * GIB,
            ),
            reason=Sampled(sampler="plimsoll") if trial == number else Remeasures(trial=trial),
            started_at=_SECONDS * number,
            ended_at=_SECONDS * number,
            fingerprint=None,
        )


def _half(trials: Sequence[Trial], parity: int) -> list[Trial]:
    """Returns the trials that ran in rounds of a parity; of a plan in no round, its one trial."""
    rounds = [one for one in trials if one.round and one.round % 2 == parity and one.rate]
    return rounds or [one for one in trials if not one.round] or list(trials)


def truth_of(surface: Surface) -> Numbers:
    """Returns the logarithm of each candidate's true rate; nan for those that do not run."""
    return np.array([_mean(_half(trials, 0)) for trials in surface.trials])


def _mean(trials: Sequence[Trial]) -> float:
    logs = [np.log(one.rate) for one in trials if one.rate is not None]
    return float(np.mean(logs)) if logs else np.nan


def recorded(surface: Surface, seed: int) -> Sweep:
    """A sweep whose trials are those of the feeding rounds, in the order of time."""
    start = np.random.default_rng([seed, 2]).random()
    taken = [count(int(start * len(_half(trials, 1)))) for trials in surface.trials]

    def measure(row: int) -> Trial:
        feed = _half(surface.trials[row], 1)
        return feed[next(taken[row]) % len(feed)]

    return Sweep(surface, truth_of(surface), measure, seed)


def replayed(surface: Surface, seed: int, scale: float = 1.0) -> Sweep:
    """A sweep whose trials are the truth with the recorded noise, in the order of time."""
    truth, noise = truth_of(surface), noise_of(surface)
    clock = count(int(np.random.default_rng([seed, 3]).integers(len(noise))))

    def measure(row: int) -> Trial:
        trial = surface.trials[row][0]
        if np.isnan(truth[row]):
            return trial
        rate = float(np.exp(truth[row] + scale * noise[next(clock) % len(noise)]))
        return replace(trial, rate=rate, half_width=scale * trial.half_width)

    return Sweep(surface, truth, measure, seed)


def noise_of(surface: Surface) -> Numbers:
    """Returns how each trial of the feeding rounds differed from its plan's mean, by time."""
    found = list[tuple[float, float]]()
    for trials in surface.trials:
        feed = [one for one in _half(trials, 1) if one.round and one.rate is not None]
        if len(feed) > 1:
            wider = np.sqrt(len(feed) / (len(feed) - 1))  # the mean is of the same trials
            mean = _mean(feed)
            found += [(one.began, wider * (np.log(one.rate) - mean)) for one in feed if one.rate]
    return np.array([value for _, value in sorted(found)])


WAYS: Mapping[str, Callable[[Surface, int], Sweep]] = {
    "recorded": recorded,
    "replayed": replayed,
    "quiet": lambda surface, seed: replayed(surface, seed, QUIET),
}


def judge(way: str, surface: Surface, seeds: int) -> dict[str, dict[str, float]]:
    """Returns the figures of each rule over so many sweeps of a surface."""
    return figures([WAYS[way](surface, seed) for seed in range(seeds)])


def figures(sweeps: Sequence[Sweep]) -> dict[str, dict[str, float]]:
    """Returns the figures of each rule over the sweeps of a surface."""
    found: dict[str, dict[str, float]] = {}
    for name, rule in RULES.items():
        answers = [rule(sweep) for sweep in sweeps]
        regrets = [s.regret(answer.row) for s, answer in zip(sweeps, answers, strict=True)]
        held = [each for answer in answers for each in answer.held]
        found[name] = {
            "far_share": float(np.mean(np.array(regrets) > FAR)),
            "mean_regret": float(np.mean(regrets)),
            "repeats": float(np.mean([answer.repeats for answer in answers])),
        }
        if held:
            found[name] |= {
                "coverage": float(np.mean(held)),
                "called_noisy": float(np.mean([answer.noisy for answer in answers])),
            }
    return found


def over_surfaces(each: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Returns the mean over surfaces of each figure, with its 95 % interval by bootstrap."""
    picks = np.random.default_rng(0).integers(len(each), size=(2000, len(each)))
    found = {}
    for name in each[0]:
        values = np.array([one[name] for one in each])
        low, high = np.quantile(values[picks].mean(axis=1), (0.025, 0.975))
        found[name] = [round(float(value), 4) for value in (values.mean(), low, high)]
    return found


def main() -> None:
    """Compares the rules and writes the figures."""
    parser = command_line(__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="sweeps of each surface (100)")
    parser.add_argument("--surfaces", type=Path, default=_RECORDED, metavar="FOLDER")
    given = parser.parse_args()
    surfaces = surfaces_in(given.surfaces, forecaster_without, least=0)
    found: dict[str, Any] = {"seeds": given.seeds, "trials": TRIALS, "noise": {}}
    for surface in surfaces:
        noise = noise_of(surface)
        found["noise"][surface.name] = {
            "deviation": round(float(noise.std()), 4),
            "next_trial_correlation": round(float(np.corrcoef(noise[:-1], noise[1:])[0, 1]), 3),
        }
    # a process that was forked from one that traced a model could not run torch's autograd
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        told = {way: pool.map(judge, repeat(way), surfaces, repeat(given.seeds)) for way in WAYS}
    for way, figures_of in told.items():
        each = {one.name: of for one, of in zip(surfaces, figures_of, strict=True)}
        found[way] = {
            rule: over_surfaces([of[rule] for of in each.values()])
            | {"by_surface": {name: of[rule]["far_share"] for name, of in each.items()}}
            for rule in RULES
        }
        for rule, of in found[way].items():
            print(f"{way}, {rule}: {of}", flush=True)
    write(found, given.out)


if __name__ == "__main__":
    main()
