"""`plimsoll tune` with its defaults against what users do without it, at the same wall clock.

    python -m benchmarks.gpu.sweep [--out DIR] [--tiny]

Each model at sequence lengths of 2048 and 4096 tokens: Plimsoll's own choice of knobs, (a) Hugging
Face's Trainer with its defaults and `auto_find_batch_size`, (b) plain Ray Tune with OptunaSearch,
or Optuna's TPE on our worker where Ray is not installed, over the same plans. One way after the
other has the device to itself; a command does as many as there is time for, the next goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.end_to_end import AS_GOOD, Ending, best_by, compared, seconds_to
from benchmarks.gpu.cases import CASES, LLAMA_1B, Case
from benchmarks.gpu.command import Asked, main
from benchmarks.gpu.found import Found
from benchmarks.gpu.limit import WINNERS
from benchmarks.gpu.verdicts import Verdict, at_least
from benchmarks.gpu.ways import OPTUNA, OURS, TRAINER, WAYS
from orchestrator.cli.console import print_line
from search_spaces.spec.schema import SweepSpec

FILE = "sweep_runs.jsonl"
LENGTHS = (2048, 4096)
MINUTES, TINY_MINUTES = 4.0, 2.0  # of each way, with the starts of its processes
OVER_TRAINER, OF_THE_TIME = 1.3, 0.25
_STARTS_SECONDS = 60.0  # of a way's last trial, which may end later
Run = dict[str, Any]


def cases(asked: Asked) -> tuple[tuple[Case, int], ...]:
    """Models and sequence lengths in tokens."""
    if asked.tiny:
        return ((LLAMA_1B, 64),)
    if asked.short:
        return ((LLAMA_1B, LENGTHS[0]),)
    return tuple((case, length) for length in LENGTHS for case in CASES)


def spec_of(case: Case, length: int, *, tiny: bool) -> SweepSpec:
    """Returns the specification of a user: model, GPU, batch and length, else defaults."""
    quick = {"max_seconds": 0.3, "min_steps": 6, "max_steps": 6}
    sections: dict[str, Mapping[str, Any]] = {
        "budget": {"trials": 3 if tiny else 10_000},  # so that time alone ends it
        "validation": {"enabled": False},  # which the others do not have either
        "tracking": {"enabled": False},
    }
    if tiny:
        sections["objective"] = quick
    return case.spec(tiny=tiny, sequence_length=length, **sections)


def measure(asked: Asked) -> Found:
    """Runs the ways that have not been run yet, while there is time."""
    minutes = TINY_MINUTES if asked.tiny else MINUTES
    for case, length, way in missing(asked, read(asked)):
        if not asked.tiny and not asked.has(60 * minutes + _STARTS_SECONDS):
            break
        done = WAYS[way](asked, spec_of(case, length, tiny=asked.tiny), minutes)
        run = {
            "model": case.name,
            "sequence_length": length,
            "way": way,
            "how": done.how,
            "minutes": minutes,
            "best": done.best,
            "endings": [asdict(ending) for ending in done.endings],
        }
        with (asked.out / FILE).open("a", encoding="utf-8") as opened:
            opened.write(json.dumps(run) + "\n")
        rate = best_by(done.endings, 60 * minutes)
        print_line(
            f"{case.name} at {length}: {way}, {done.how}: {len(done.endings)} trials, {rate:.4g}"
        )
    runs = read(asked)
    (asked.out / WINNERS).write_text(json.dumps(winners(runs), indent=2) + "\n", "utf-8")
    left = len(list(missing(asked, runs)))
    return judged(runs, left=f"{left} searches were not run" if left else "")


def read(asked: Asked) -> list[Run]:
    """The searches that were run; a line that was cut short when it was written is left out."""
    file = asked.out / FILE
    text = file.read_text("utf-8") if file.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def missing(asked: Asked, runs: Sequence[Run]) -> Iterator[tuple[Case, int, str]]:
    """Yields what has not been run yet, case by case; in the short form Plimsoll's way alone."""
    done = {(run["model"], run["sequence_length"], run["way"]) for run in runs}
    for case, length in cases(asked):
        for way in (OURS,) if asked.short else WAYS:
            if (case.name, length, way) not in done:
                yield case, length, way


def winners(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Plimsoll's best plan of each case, for `benchmarks.gpu.limit`."""
    return [
        {"model": run["model"], "sequence_length": run["sequence_length"], **run["best"]}
        for run in runs
        if run["way"] == OURS and run["best"] is not None
    ]


def judged(runs: Sequence[Run], left: str = "") -> Found:
    """Judges what each way found in the same time, and the targets over all cases."""
    cases_of = dict.fromkeys((run["model"], run["sequence_length"]) for run in runs)
    told = [_case(model, length, runs) for model, length in cases_of]
    over = [one["over_trainer"] for one in told if one["over_trainer"] is not None]
    beside = [one["over_optuna"] for one in told if one["over_optuna"] is not None]
    times = [one["share_of_time"] for one in told if one["share_of_time"] is not None]
    never = sum(one["never_level"] for one in told)
    slowest = max(times, default=None)
    return Found(
        figures={"cases": told},
        rows=[row for one in told for row in one["rows"]],
        shown=("model", "tokens", "way", "best", "seconds_to_best", "trials", "out_of_memory"),
        verdicts=(
            at_least("speed over the Trainer's, worst", OVER_TRAINER, min(over, default=None)),
            at_least("speed over Optuna's, worst", AS_GOOD, min(beside, default=None)),
            Verdict(
                what="time until level with Optuna's best, worst",
                asked=f"{OF_THE_TIME:.0%} of its time",
                reached=f"never in {never}" if never else slowest and f"{slowest:.0%}",
                holds=False if never else None if slowest is None else slowest <= OF_THE_TIME,
            ),
        ),
        left=left,
    )


def _case(model: str, length: int, runs: Sequence[Run]) -> dict[str, Any]:
    own = [run for run in runs if (run["model"], run["sequence_length"]) == (model, length)]
    ends = {run["way"]: [Ending(**one) for one in run["endings"]] for run in own}
    minutes = own[0]["minutes"]
    best = {way: best_by(endings, 60 * minutes) for way, endings in ends.items()}
    ours, trainer, optuna = best.get(OURS), best.get(TRAINER), best.get(OPTUNA)
    both = {way: ends[way] for way in (OURS, OPTUNA) if way in ends}
    level = compared(both, minutes)["ways"] if len(both) > 1 else {}
    mine = level[OURS]["seconds_to_others_best"] if level else None
    theirs = level[OPTUNA]["seconds_to_own_best"] if level else None
    return {
        "model": model,
        "tokens": length,
        "over_trainer": ours / trainer if ours is not None and trainer else None,
        "over_optuna": ours / optuna if ours is not None and optuna else None,
        "share_of_time": mine / theirs if mine is not None and theirs else None,
        "never_level": bool(level) and bool(optuna) and mine is None,
        "rows": [_row(model, length, run, ends[run["way"]]) for run in own],
    }


def _row(model: str, length: int, run: Run, endings: Sequence[Ending]) -> dict[str, Any]:
    last = 60 * run["minutes"]
    within = [ending for ending in endings if ending.seconds <= last]
    best = best_by(within, last)
    return {
        "model": model,
        "tokens": length,
        "way": run["way"],
        "how": run["how"],
        "best": best,
        "seconds_to_best": seconds_to(within, best),
        "trials": len(within),
        "measured": sum(ending.kind == "measured" for ending in within),
        "out_of_memory": sum(ending.kind == "out_of_memory" for ending in within),
        "minutes": run["minutes"],
    }


if __name__ == "__main__":
    main("sweep", __doc__, measure)
