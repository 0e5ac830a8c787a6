"""`plimsoll tune` against plain Ray Tune with OptunaSearch: the best plan after each minute.

    python -m benchmarks.end_to_end [--minutes 3] [--pairs 10] [--out FILE]

Both search the same space with the same trials for the same wall-clock, from the start of their
process, one after the other on this machine, and each pair in the other order; nothing else should
run on it meanwhile. Plain Ray Tune is `benchmarks.plain_ray_tune`. Told are the best plan that each
knew after each minute, when each had a plan as good as the best that the other found in all its
time, within 2 %, and how fast both answers are: measured afresh in turn, after both.
"""

import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from benchmarks.output import command_line, write
from benchmarks.record import measure as run_trial
from orchestrator.study.reader import load_state
from search_spaces.plan import Plan
from search_spaces.specification.load import spec_to_yaml
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Measured, TrialRequest
from tests.workers.launch import Groups

AS_GOOD = 0.98  # of the other's best: closer than trials can tell
GRACE_SECONDS = 180.0  # for what is under way when the time is over
NAME = "end-to-end"
AFRESH = 8  # trials of each answer
OURS, THEIRS = "plimsoll tune", "Ray Tune + OptunaSearch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A trial that ended so many seconds after the start; rate 0 if it measured nothing."""

    seconds: float
    rate: float
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The trials of a sweep, and its answer; None if it has none."""

    endings: tuple[Ending, ...]
    answer: Plan | None


def spec_for(folder: str) -> SweepSpec:
    """A small Llama on two ranks, with less memory than half of its plans want."""
    return SweepSpec.model_validate(
        {
            "model": {
                "name": "llama-3.2-1b",
                "config": {
                    "hidden_size": 192,
                    "intermediate_size": 512,
                    "num_hidden_layers": 4,
                    "num_attention_heads": 6,
                    "num_key_value_heads": 2,
                    "head_dim": 32,
                    "vocab_size": 4096,
                },
            },
            "cluster": {"device": "cpu", "workers": 2, "memory_gib": 0.2},
            "train": {"global_batch": 32, "sequence_length": 128, "precision": "fp32"},
            "space": {
                "engine": ["torch"],
                "zero_stage": [0, 2, 3],
                "micro_batch": [1, 2, 4, 8, 16],
                "checkpoint_ratio": [0.0, 0.5, 1.0],
                "attention": ["sdpa", "eager"],
                "optimizer": ["adamw_fused", "adamw_foreach"],
            },
            "objective": {"max_seconds": 4, "interval": 0.03, "headroom": 0.0},
            "budget": {"trials": 10_000},
            "study": {"folder": folder, "name": NAME},
        }
    )


def tuned(file: Path, spec: SweepSpec, minutes: float) -> Found:
    """Runs `plimsoll tune`."""
    started = time.time()
    typed = ["tune", str(file), "--plain", "--minutes", f"{minutes:g}"]
    run_sweep([sys.executable, "-m", "plimsoll", *typed], minutes)
    trials = trials_of(spec)
    best = load_state(spec, NAME).best if trials else None
    endings = tuple(
        Ending(
            seconds=told["at"] - started,
            rate=told["rate"] or 0.0,
            kind=told["record"]["outcome"]["kind"],
        )
        for told in trials
    )
    return Found(endings=endings, answer=best.plan if best else None)


def trials_of(spec: SweepSpec) -> list[dict[str, Any]]:
    """The trials that ended in a sweep's study: when, rate and record; none without a study."""
    name = str(spec.study.name)
    file = Path(spec.study.folder, name, "study.db")
    if not file.is_file():
        return []
    trials = optuna.load_study(study_name=name, storage=f"sqlite:///{file}").get_trials()
    return [
        {
            "at": trial.datetime_complete.timestamp(),
            "rate": trial.value,
            "record": trial.user_attrs["record"],
        }
        for trial in trials
        if trial.datetime_complete is not None and "record" in trial.user_attrs
    ]


def plain(file: Path, spec: SweepSpec, minutes: float) -> Found:
    """Runs Ray Tune with OptunaSearch."""
    out = Path(spec.study.folder, "plain.jsonl")
    started = time.time()
    typed = [str(file), "--minutes", f"{minutes:g}", "--out", str(out)]
    run_sweep([sys.executable, "-m", "benchmarks.plain_ray_tune", *typed], minutes)
    trials = lines_of(out)
    ran = [trial for trial in trials if trial["rate"] and trial["at"] <= started + 60 * minutes]
    best = max(ran, key=lambda trial: trial["rate"], default=None)
    endings = tuple(
        Ending(seconds=told["at"] - started, rate=told["rate"], kind=told["kind"])
        for told in trials
    )
    return Found(endings=endings, answer=Plan.from_dict(best["plan"]) if best else None)


def lines_of(out: Path) -> list[dict[str, Any]]:
    """The trials that plain Ray Tune wrote down; none without a file."""
    lines = out.read_text("utf-8").splitlines() if out.is_file() else []
    return [json.loads(line) for line in lines]


def afresh(spec: SweepSpec, answers: Mapping[str, Plan]) -> dict[str, float]:
    """Measures plans in turn; returns the geometric mean of each one's samples per second."""
    groups, logs = Groups(spec), {way: list[float]() for way in answers}
    for _ in range(AFRESH):
        for way, plan in answers.items():
            outcome = run_trial(groups, TrialRequest(number=0, plan=plan, spec=spec))
            if isinstance(outcome, Measured):
                logs[way].append(math.log(outcome.samples_per_second.value))
    groups.stop()
    return {way: math.exp(statistics.mean(of)) if of else 0.0 for way, of in logs.items()}


def run_sweep(command: Sequence[str], minutes: float) -> None:
    """Runs a sweep; what it says goes to standard error, and one that hangs is ended."""
    with subprocess.Popen(command, stdout=sys.stderr) as running:
        try:
            running.wait(60 * minutes + GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            running.terminate()


WAYS = {OURS: tuned, THEIRS: plain}


def best_by(endings: Sequence[Ending], seconds: float) -> float:
    """The highest rate of the trials that ended so soon; 0 if there is none."""
    return max((one.rate for one in endings if one.seconds <= seconds), default=0.0)


def seconds_to(endings: Sequence[Ending], rate: float) -> float | None:
    """Seconds until a trial that fast had ended; None if there is none, or the rate is 0."""
    return min((one.seconds for one in endings if one.rate >= rate > 0), default=None)


def compared(ways: Mapping[str, Sequence[Ending]], minutes: float) -> dict[str, Any]:
    """Returns each way's best after each minute, and when it was level with the other."""
    last = 60 * minutes
    within = {way: [e for e in endings if e.seconds <= last] for way, endings in ways.items()}
    best = {way: best_by(endings, last) for way, endings in within.items()}
    marks = [*range(1, int(minutes) + 1)]
    told = {}
    for way, endings in within.items():
        others = max(rate for other, rate in best.items() if other != way)
        told[way] = {
            "trials": len(endings),
            "endings": dict(Counter(ending.kind for ending in endings)),
            "best_after_minutes": {str(mark): best_by(endings, 60 * mark) for mark in marks},
            "best": best[way],
            "seconds_to_own_best": seconds_to(endings, best[way]),
            "seconds_to_others_best": seconds_to(endings, AS_GOOD * others),
        }
    return {"minutes": minutes, "ways": told}


def measure(minutes: float, order: Sequence[str]) -> dict[str, Any]:
    """Runs both, one after the other, then measures their answers."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="plimsoll-bench-") as folder:
        spec = spec_for(folder)
        file = Path(folder, f"{NAME}.yaml")
        file.write_text(spec_to_yaml(spec), "utf-8")
        for way in order:
            found[way] = WAYS[way](file, spec, minutes)
        answers = {way: one.answer for way, one in found.items() if one.answer is not None}
        told = compared({way: one.endings for way, one in found.items()}, minutes)
        return told | {"afresh": dict.fromkeys(order, 0.0) | afresh(spec, answers)}


def summary(pairs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns medians over pairs, and how much faster our answers are, with its 95 % interval."""
    ratios = [
        pair["afresh"][OURS] / pair["afresh"][THEIRS]
        for pair in pairs
        if pair["afresh"][OURS] and pair["afresh"][THEIRS]
    ]
    logs = np.log(ratios or [math.nan])
    picks = np.random.default_rng(0).integers(len(logs), size=(2000, len(logs)))
    ends = np.quantile(logs[picks].mean(axis=1), (0.025, 0.975)).tolist()
    level = [pair["ways"][OURS]["seconds_to_others_best"] or math.inf for pair in pairs]
    middle = statistics.median(level)
    return {
        "pairs": len(pairs),
        "answers": {way: sum(pair["afresh"][way] > 0 for pair in pairs) for way in WAYS},
        "trials": {
            way: statistics.median(pair["ways"][way]["trials"] for pair in pairs) for way in WAYS
        },
        "faster": [round(math.exp(value), 3) for value in (float(logs.mean()), *ends)],
        "faster_in": sum(ratio > 1 for ratio in ratios),
        "seconds_to_others_best": middle if math.isfinite(middle) else None,  # None: never
    }


def earlier_pairs(file: Path | None) -> list[dict[str, Any]]:
    """Returns the pairs of a run that was stopped, which this one goes on with."""
    if file is None or not file.is_file():
        return []
    pairs: list[dict[str, Any]] = json.loads(file.read_text("utf-8")).get("pairs", [])
    return pairs


def main() -> None:
    """Prints what each found, and keeps it where asked."""
    parser = command_line(__doc__)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--pairs", type=int, default=10)
    options = parser.parse_args()
    pairs = earlier_pairs(options.out)
    for number in range(len(pairs), options.pairs):
        pairs.append(measure(options.minutes, [*WAYS][:: -1 if number % 2 else 1]))
        print(pairs[-1], flush=True)
        write({"summary": summary(pairs), "pairs": pairs}, options.out)
    print(summary(pairs))


if __name__ == "__main__":
    main()
