"""`plimsoll tune` against plain Ray Tune with OptunaSearch: the best plan after each minute.

    python -m benchmarks.end_to_end [--minutes 6] [--out FILE]

Both search the same space with the same trials for the same wall-clock, from the start of their
process, one after the other on this machine; nothing else should run on it meanwhile. Plain Ray
Tune is `benchmarks.plain_ray_tune`. Told are the best plan that each knew after each minute, and
when each had a plan as good as the best that the other found in all its time, within 2 %.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna

from benchmarks.output import write
from search_spaces.specification.load import spec_to_yaml
from search_spaces.specification.schema import SweepSpec

AS_GOOD = 0.98  # of the other's best: closer than trials can tell
GRACE_SECONDS = 180.0  # for what is under way when the time is over
NAME = "end-to-end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A trial that ended so many seconds after the start; rate 0 if it measured nothing."""

    seconds: float
    rate: float
    kind: str


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


def tuned(file: Path, spec: SweepSpec, minutes: float) -> tuple[Ending, ...]:
    """The trials of `plimsoll tune`."""
    started = time.time()
    typed = ["tune", str(file), "--plain", "--minutes", f"{minutes:g}"]
    run_sweep([sys.executable, "-m", "plimsoll", *typed], minutes)
    return tuple(
        Ending(
            seconds=trial.datetime_complete.timestamp() - started,
            rate=trial.value or 0.0 if trial.values else 0.0,
            kind=trial.user_attrs["record"]["outcome"]["kind"],
        )
        for trial in trials_of(spec)
        if trial.datetime_complete is not None
    )


def trials_of(spec: SweepSpec) -> list[optuna.trial.FrozenTrial]:
    """The trials in a sweep's study that have a record; none without a study."""
    name = str(spec.study.name)
    file = Path(spec.study.folder, name, "study.db")
    if not file.is_file():
        return []
    trials = optuna.load_study(study_name=name, storage=f"sqlite:///{file}").get_trials()
    return [trial for trial in trials if "record" in trial.user_attrs]


def plain(file: Path, spec: SweepSpec, minutes: float) -> tuple[Ending, ...]:
    """The trials of Ray Tune with OptunaSearch."""
    out = Path(spec.study.folder, "plain.jsonl")
    started = time.time()
    typed = [str(file), "--minutes", f"{minutes:g}", "--out", str(out)]
    run_sweep([sys.executable, "-m", "benchmarks.plain_ray_tune", *typed], minutes)
    lines = out.read_text("utf-8").splitlines() if out.is_file() else []
    return tuple(
        Ending(seconds=told["at"] - started, rate=told["rate"], kind=told["kind"])
        for told in map(json.loads, lines)
    )


def run_sweep(command: Sequence[str], minutes: float) -> None:
    """Runs a sweep; what it says goes to standard error, and one that hangs is ended."""
    with subprocess.Popen(command, stdout=sys.stderr) as running:
        try:
            running.wait(60 * minutes + GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            running.terminate()


WAYS = {"plimsoll tune": tuned, "Ray Tune + OptunaSearch": plain}


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
        kinds = [ending.kind for ending in endings]
        told[way] = {
            "trials": len(endings),
            "endings": {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)},
            "best_after_minutes": {str(mark): best_by(endings, 60 * mark) for mark in marks},
            "best": best[way],
            "seconds_to_own_best": seconds_to(endings, best[way]),
            "seconds_to_others_best": seconds_to(endings, AS_GOOD * others),
        }
    return {"minutes": minutes, "ways": told}


def measure(minutes: float) -> dict[str, Any]:
    """Runs both, one after the other."""
    with tempfile.TemporaryDirectory(prefix="plimsoll-bench-") as folder:
        spec = spec_for(folder)
        file = Path(folder, f"{NAME}.yaml")
        file.write_text(spec_to_yaml(spec), "utf-8")
        ways = {way: sweep(file, spec, minutes) for way, sweep in WAYS.items()}
    if silent := [way for way, endings in ways.items() if not endings]:
        sys.exit(f"no trial ended: {' and '.join(silent)}; what they said is above")
    return compared(ways, minutes)


def main() -> None:
    """Prints what each found, and keeps it where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = measure(options.minutes)
    for way, told in result["ways"].items():
        print(f"{way}: {told['trials']} trials, {told['endings']}")
        for mark, rate in told["best_after_minutes"].items():
            print(f"  after {mark:>3} min   best {rate:8.1f} samples/s")
        level = told["seconds_to_others_best"]
        words = "never" if level is None else f"after {level:.0f} s"
        print(f"  as good as the other's best: {words}")
    write(result, options.out)


if __name__ == "__main__":
    main()
