"""Quality of a sweep's answer by the product's rule, and by two simple ones.

    python -m benchmarks.answers [--seeds N] [--out FILE]

On surfaces with real repeats (`benchmarks/surfaces`), Plimsoll's search runs 40 trials. Each trial
is one of the plan's recorded repeats, and the search knows only the interval that a trial has. Then
three rules answer on the same trials: the highest measurement; the highest posterior mean of the
search; and the product's (`orchestrator.core.repeats`: plans that lead are measured again, which
the search ranks anew after each repeat, and the plan whose interval has the highest lower end
wins).
The true speed of a plan is the posterior mean of all its repeats. On simulated machines, twenty
plans have speeds drawn from a surface, and the machine is quiet, noisy or slow at times.

For each rule: how often the answer is more than 5 % slower than the best plan that was tried, the
mean regret, and the number of extra trials; of the product's rule, too, in how many of the
intervals that reports show after its repeats the true speed lies.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.outcomes import measured
from benchmarks.output import write
from benchmarks.published.product import forecaster_without
from benchmarks.search.surfaces import Surface, Trial, surfaces_in
from orchestrator.core.best import leaders
from orchestrator.core.objective import Objective
from orchestrator.core.reasons import Remeasures, Sampled
from orchestrator.core.records import Record
from orchestrator.core.repeats import FINALISTS, next_repeat
from orchestrator.core.speeds import Speeds
from orchestrator.search.observations import Observation, with_deviation
from orchestrator.search.search import CandidatePool, Search
from search_spaces.plan import Plan
from search_spaces.specification.schema import GIB, SweepSpec
from tests.plans import ddp_plan

TRIALS, FAR = 40, 0.05
HALF_WIDTH = 0.025  # of a trial's interval, by the steps within it
_RECORDED = Path(__file__).parent / "surfaces"
_INTERVAL = 1.96
Numbers = NDArray[np.float64]
Draw = Callable[[int], float | None]
Rank = Callable[[Sequence[tuple[int, float]], float], list[int]]
SPEC = SweepSpec.model_validate(
    {
        "model": "gpt2",
        "train": {"global_batch": 512, "sequence_length": 1024},
        "validation": {"enabled": True},
    }
)
_BASE = ddp_plan(data=1, precision="bf16")


@dataclass(frozen=True, kw_only=True)
class Swept:
    """A sweep that has ended its search.

    Attributes:
        rates: What each tried plan measured, by its row, in the order of the trials.
        rank: Returns the rows that lead, best first, after these repeats, each a row and its rate;
            with the deviation between trials that they show.
        truth: The logarithm of each row's true speed.
        draw: Measures a row once more; None if it fails.
    """

    rates: dict[int, float]
    rank: Rank
    truth: Numbers
    draw: Draw

    def regret(self, row: int) -> float:
        """Returns how much slower a plan is than the best that was tried, as a share."""
        best = max(self.truth[one] for one in self.rates)
        return float(1 - np.exp(self.truth[row] - best))


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer of a rule.

    Attributes:
        row: The plan.
        trials: That it took after the search.
        held: For each plan that was tried, whether the interval that reports show of it holds its
            true speed; empty for rules without intervals.
    """

    row: int
    trials: int = 0
    held: tuple[bool, ...] = ()


def highest_measured(swept: Swept) -> Answer:
    """The plan with the highest single measurement."""
    return Answer(row=max(swept.rates, key=swept.rates.__getitem__))


def highest_posterior_mean(swept: Swept) -> Answer:
    """The plan that the search expects to be best, not measured again."""
    return Answer(row=swept.rank((), 0.0)[0])


def rule_today(swept: Swept) -> Answer:
    """The product's own: its finalists, its repeats, its ranking."""
    plans = {row: _plan(row) for row in swept.rates}
    rows = {plan: row for row, plan in plans.items()}
    records = [
        _record(number, plans[row], rate, repeats=None)
        for number, (row, rate) in enumerate(swept.rates.items())
    ]
    baseline = records[0].plan
    repeats = list[tuple[int, float]]()
    while True:
        speeds = Speeds.of(records, (), Objective.of(SPEC))
        leading = [plans[row] for row in swept.rank(repeats, speeds.deviation)]
        plan = next_repeat(records, (), leading, baseline, SPEC)
        if plan is None:
            break
        # a repeat that fails is out of the answer, which no recorded one of the leaders does
        rate = swept.draw(rows[plan]) or 1e-6
        repeats.append((rows[plan], rate))
        trial = next(record.number for record in records if record.plan == plan)
        records.append(_record(len(records), plan, rate, repeats=trial))
    return Answer(
        row=rows[leaders(records, (), {}, SPEC)[0].plan],
        trials=len(records) - len(swept.rates),
        held=tuple(
            abs(speed.mean - swept.truth[rows[plan]]) <= speeds.half_width(plan)
            for plan, speed in speeds.by_plan.items()
        ),
    )


RULES: dict[str, Callable[[Swept], Answer]] = {
    "highest measured": highest_measured,
    "highest posterior mean": highest_posterior_mean,
    "today: leaders measured again": rule_today,
}


def _plan(row: int) -> Plan:
    """A plan that stands for a row."""
    return replace(_BASE, micro_batch=row + 1)


def _record(number: int, plan: Plan, rate: float, repeats: int | None) -> Record:
    reason = Sampled(sampler="plimsoll") if repeats is None else Remeasures(trial=repeats)
    return Record(
        number=number,
        plan=plan,
        outcome=measured(
            rate,
            batch=SPEC.train.global_batch,
            tokens=1024,
            half_width=HALF_WIDTH,
            peak_bytes=GIB,
            limit_bytes=16 * GIB,
        ),
        reason=reason,
        started_at=10.0 * number,
        ended_at=10.0 * number + 9,
        fingerprint=None,
    )


def on_surface(surface: Surface, seed: int) -> Swept:
    """Searches a recorded surface; each trial and repeat is one of the plan's recorded ones."""
    random = np.random.default_rng([seed, 2])
    search = Search(_pool(surface), seed)
    order: dict[int, list[int]] = {}

    def trial(row: int) -> Trial:
        if not order.get(row):
            order[row] = random.permutation(len(surface.trials[row])).tolist()
        return surface.trials[row][order[row].pop()]

    observed, rates = list[Observation](), dict[int, float]()
    shares = dict[int, float | None]()
    free = np.ones(len(surface), dtype=bool)
    for _ in range(TRIALS):
        row = search.choose(observed, free).row
        free[row] = False
        told = trial(row)
        observed.append(_observation(row, told, HALF_WIDTH / _INTERVAL))
        if told.rate is not None:
            rates[row], shares[row] = told.rate, told.log_share

    def rank(repeats: Sequence[tuple[int, float]], deviation: float) -> list[int]:
        again = [
            _observation(
                row, Trial(rate=rate, log_share=shares[row], seconds=0.0), HALF_WIDTH / _INTERVAL
            )
            for row, rate in repeats
        ]
        known = with_deviation([*observed, *again], deviation if repeats else 0.0)
        return search.leaders(known, FINALISTS)

    return Swept(
        rates=rates,
        rank=rank,
        truth=_truth(surface),
        draw=lambda row: trial(row).rate,
    )


def _pool(surface: Surface) -> CandidatePool:
    return CandidatePool(
        features=surface.features(),
        log_rate=surface.log_rate,
        log_share=surface.log_share,
        rate_parts=surface.rate_parts,
        share_parts=surface.share_parts,
    )


def _observation(row: int, trial: Trial, noise: float) -> Observation:
    if trial.rate is None:
        return Observation(row=row, log_share=max(trial.log_share or 0.0, 0.0), ran_out=True)
    return Observation(
        row=row,
        log_rate=float(np.log(trial.rate)),
        rate_noise=noise,
        log_share=trial.log_share,
        fitted=True,
    )


def _truth(surface: Surface) -> Numbers:
    """Posterior means of all repeats: of three of them alone the highest mean would be luck."""
    observed = [
        _observation(row, trial, surface.noise)
        for row, trials in enumerate(surface.trials)
        for trial in trials
    ]
    search = Search(_pool(surface), 0)
    fitted = search._fit(observed)
    return search._score_rows(fitted, np.arange(len(surface)), fitted.rate).mean


def on_machine(surface: Surface, seed: int, *, jitter: float, slow_share: float) -> Swept:
    """Twenty plans of a surface on a simulated machine, each tried once.

    Args:
        surface: Where the speeds are drawn from.
        seed: Random seed.
        jitter: Standard deviation of the logarithm of a speed from trial to trial.
        slow_share: Share of the time in which the machine is 10 to 30 % slower, in spells of five
            trials.
    """
    random = np.random.default_rng([seed, 3])
    speeds = surface.rate[np.isfinite(surface.rate)]
    truth = np.log(random.choice(speeds, 20, replace=len(speeds) < 20))
    spell = 0.0

    def draw(row: int) -> float:
        nonlocal spell
        if random.random() < 0.2:  # a spell lasts five trials in the mean
            spell = random.uniform(0.1, 0.3) if random.random() < slow_share else 0.0
        return float(np.exp(truth[row] + random.normal(0, jitter)) * (1 - spell))

    rates = {row: draw(row) for row in range(20)}
    return Swept(
        rates=rates,
        rank=lambda repeats, _: _highest_means(rates, repeats)[:FINALISTS],
        truth=truth,
        draw=draw,
    )


def _highest_means(rates: dict[int, float], repeats: Sequence[tuple[int, float]]) -> list[int]:
    """Returns rows by their mean rate: unrelated plans, of which a search knows nothing more."""
    found = {row: [rate] for row, rate in rates.items()}
    for row, rate in repeats:
        found[row].append(rate)
    return sorted(found, key=lambda row: float(np.mean(np.log(found[row]))), reverse=True)


MACHINES = {
    "quiet machine (0.5 %)": {"jitter": 0.005, "slow_share": 0.0},
    "slow spells, 20 % of the time": {"jitter": 0.01, "slow_share": 0.2},
    "slow spells, half of the time": {"jitter": 0.01, "slow_share": 0.5},
    "jitter 3 %": {"jitter": 0.03, "slow_share": 0.0},
    "jitter 10 %": {"jitter": 0.1, "slow_share": 0.0},
}


def figures(sweeps: Sequence[Swept]) -> dict[str, dict[str, float]]:
    """Returns the figures of each rule over all sweeps."""
    found: dict[str, dict[str, float]] = {}
    for name, rule in RULES.items():
        answers = [rule(swept) for swept in sweeps]
        pairs = zip(sweeps, answers, strict=True)
        regrets = np.array([swept.regret(answer.row) for swept, answer in pairs])
        held = [each for answer in answers for each in answer.held]
        found[name] = {
            "far_share": round(float((regrets > FAR).mean()), 3),
            "mean_regret": round(float(regrets.mean()), 4),
            "extra_trials": round(float(np.mean([answer.trials for answer in answers])), 1),
        }
        if held:
            found[name]["coverage"] = round(float(np.mean(held)), 3)
    return found


def main() -> None:
    """Compares the rules and writes the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=250, help="sweeps of each surface (250)")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    surfaces = surfaces_in(_RECORDED, forecaster_without, least=100)
    by_place: defaultdict[str, list[Swept]] = defaultdict(list)
    for surface in surfaces:
        for seed in range(given.seeds):
            by_place["recorded surfaces"].append(on_surface(surface, seed))
            for name, machine in MACHINES.items():
                by_place[name].append(on_machine(surface, seed, **machine))
    found: dict[str, Any] = {
        "seeds": given.seeds,
        "surfaces": [surface.name for surface in surfaces],
        "trials": TRIALS,
    }
    for place, sweeps in by_place.items():
        found[place] = figures(sweeps)
        print(f"{place}, {len(sweeps)} sweeps: more than 5 % off, mean regret, extra trials")
        for name, told in found[place].items():
            far, regret = 100 * told["far_share"], 100 * told["mean_regret"]
            line = f"  {name:36} {far:5.1f} % {regret:6.2f} % {told['extra_trials']:5.1f}"
            covers = f"  intervals hold {told['coverage']:.0%}" if "coverage" in told else ""
            print(line + covers)
    write(found, given.out)


if __name__ == "__main__":
    main()
