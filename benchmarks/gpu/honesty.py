"""The tool's samples per second against a plain training loop, for the same plans.

Each plan is measured, exported as a script of plain torch, and run twice: as it was exported, with
a recorder that reads its settings, losses and speed (`plimsoll verify`), and with a model and data
of its own in the place of Plimsoll's, so that nothing of Plimsoll is in its process. What was
compared is kept in `honesty.jsonl`, and the same command goes on from it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu.cases import LLAMA_1B, space_of
from benchmarks.gpu.plain import plain_rate, write_plain
from benchmarks.gpu.task import Figures, Task
from benchmarks.gpu.worker import Trial
from orchestrator.core.losses import loss_tolerance
from orchestrator.core.reasons import IsBaseline
from orchestrator.core.records import Record
from orchestrator.export.bundle import write_bundle
from orchestrator.export.formats import export_bundle
from orchestrator.export.source import ExportSource
from orchestrator.export.verify import check_run as findings_of
from orchestrator.export.verify import observed_run, observed_speed
from orchestrator.report.labels import plan_words
from search_spaces.plan import Plan
from search_spaces.settings.export_manifest import ExportManifest
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Measured
from workers.prepare import prepare

KEPT = "honesty.jsonl"  # a line for each plan, in the results' folder
WITHIN = 0.02
STEPS, TINY_STEPS = 24, 8
_LONGEST_SECONDS = 150.0  # of one plan: a trial, two runs of its script, and a trial again
_OBJECTIVE = {"min_steps": 12, "max_steps": 24, "max_seconds": 30.0, "interval": 0.005}
_TINY_OBJECTIVE = {"min_steps": 6, "max_steps": 8, "max_seconds": 1.0, "interval": 0.05}
KNOBS: tuple[dict[str, Any], ...] = (  # of Llama's plans, which draw no random numbers
    {"micro_batch": 4, "checkpoint_ratio": 0.0},
    {"micro_batch": 2, "checkpoint_ratio": 1.0},
    {"micro_batch": 4, "checkpoint_ratio": 0.0, "compile": True},
)


def spec_of(knobs: dict[str, Any], *, tiny: bool) -> SweepSpec:
    """A space of that one plan."""
    space = {"engine": ["torch"], "attention": ["sdpa"], "optimizer": ["adamw_fused"]}
    chosen = {"compile": [False]} | {name: [value] for name, value in knobs.items()}
    objective = _TINY_OBJECTIVE if tiny else _OBJECTIVE
    return LLAMA_1B.spec(tiny=tiny, space=space | chosen, objective=objective)


def measure(task: Task) -> Figures:
    """Compares plan after plan while there is time."""
    wanted = KNOBS[1:2] if task.tiny else KNOBS
    kept = task.out / KEPT
    lines = kept.read_text("utf-8").splitlines() if kept.exists() else ()
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    done = [row["knobs"] for row in rows]
    for knobs in wanted:
        if knobs in done:
            continue
        if len(rows) > len(lines) and not task.has(_LONGEST_SECONDS):
            break
        spec = spec_of(knobs, tiny=task.tiny)
        plan = space_of(spec, task.worker.here(spec)).table.plan(0)
        rows.append({"plan": plan_words(plan), "knobs": knobs} | _compared(task, spec, plan))
        with kept.open("a", encoding="utf-8") as opened:
            opened.write(json.dumps(rows[-1]) + "\n")
        print(rows[-1], flush=True)
    left = f"{len(wanted) - len(rows)} plans were not compared"
    return judged(rows) | {"left": left if len(rows) < len(wanted) else ""}


def _compared(task: Task, spec: SweepSpec, plan: Plan) -> dict[str, Any]:
    """Rates of one plan in samples per second; the tool's are of before and after the scripts."""
    steps = TINY_STEPS if task.tiny else STEPS
    trial = task.worker.measure(spec, plan)
    first = trial.outcome
    if not isinstance(first, Measured):
        return {"outcome": first.kind}
    task.worker.stop()  # so that its script has the device
    with TemporaryDirectory(prefix="plimsoll-gpu-") as kept:
        folder = Path(kept, "exported")
        source = taken_from(spec, plan, trial)
        write_bundle(export_bundle(source, "torchrun"), source, folder)
        told = ExportManifest.read(folder)
        ranks = observed_run(told, folder, steps=steps, seconds=_LONGEST_SECONDS)
        findings = findings_of(told, ranks)
        script = write_plain(folder, Path(kept, "plain"), spec, plan)
        plain = plain_rate(script, told, steps=steps, seconds=_LONGEST_SECONDS)
    again = task.worker.measure(spec, plan).outcome
    rates = [one.samples_per_second.value for one in (first, again) if isinstance(one, Measured)]
    ours = sum(rates) / len(rates)
    seen = observed_speed(plan, ranks[0])
    return {
        "outcome": first.kind,
        "ours": ours,
        "ours_spread": max(rates) / min(rates) - 1,
        "exported": seen and seen.value,
        "exported_ratio": seen and seen.value / ours,
        "plain": plain,
        "plain_ratio": plain / ours,
        "differs": "; ".join(
            f"{one.check}: {one.observed}, not {one.expected}"
            for one in findings
            if one.passed is False
        ),
        "losses": next(one.observed for one in findings if one.check == "losses"),
        "losses_hold": next(one.passed for one in findings if one.check == "losses"),
    }


def taken_from(spec: SweepSpec, plan: Plan, trial: Trial) -> ExportSource:
    """A trial as it is exported, without the study that it would else come from."""
    assert isinstance(trial.outcome, Measured)
    record = Record(
        number=0,
        plan=plan,
        outcome=trial.outcome,
        reason=IsBaseline(),
        started_at=trial.started_at,
        ended_at=trial.ended_at,
        fingerprint=trial.fingerprint,
    )
    return ExportSource(
        study="honesty",
        spec=spec,
        model=prepare(spec),
        record=record,
        outcome=trial.outcome,
        validation=None,
        device=trial.fingerprint.device,
        hosts=1,
        loss_tolerance=loss_tolerance(record, (), spec, plan).share,
    )


def judged(rows: Sequence[dict[str, Any]]) -> Figures:
    """Judges how far plain loops were from what the tool said, at worst."""
    compared = [row for row in rows if row.get("plain_ratio")]
    return {
        "within": WITHIN,
        "plans": len(compared),
        "worst": max((abs(row["plain_ratio"] - 1) for row in compared), default=None),
        "losses_hold": sum(row["losses_hold"] for row in compared),
        "rows": rows,
    }
