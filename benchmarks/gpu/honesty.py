"""The tool's samples per second against a plain training loop, for the same plans.

    python -m benchmarks.gpu.honesty [--out DIR] [--tiny]

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

from benchmarks.gpu.cases import GPT2_XL, LLAMA_1B, LLAMA_3B, Case
from benchmarks.gpu.choosing import space_of
from benchmarks.gpu.command import Asked, main
from benchmarks.gpu.found import Found
from benchmarks.gpu.plain_run import plain_rate
from benchmarks.gpu.plain_script import write_plain
from benchmarks.gpu.verdicts import Verdict
from orchestrator.cli.console import print_line
from orchestrator.core.inputs import TrialFinished
from orchestrator.core.losses import loss_tolerance
from orchestrator.core.reasons import IsBaseline
from orchestrator.core.records import Record
from orchestrator.export.bundle import write_bundle
from orchestrator.export.formats import export_bundle
from orchestrator.export.source import ExportSource
from orchestrator.export.verify import check_run as findings_of
from orchestrator.export.verify import observed_run, observed_speed
from orchestrator.report.labels import plan_words
from search_spaces.errors import ClusterError
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
_CASES = (LLAMA_1B, GPT2_XL, LLAMA_3B)
_NO_DROPOUT = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}  # else losses differ
_KNOBS: tuple[dict[str, Any], ...] = (
    {"micro_batch": 4, "checkpoint_ratio": 0.0},
    {"micro_batch": 2, "checkpoint_ratio": 1.0},
    {"micro_batch": 4, "checkpoint_ratio": 0.0, "compile": True},
)


def cases(asked: Asked) -> tuple[tuple[Case, dict[str, Any]], ...]:
    """Returns models and the special knobs of their plans, the most important first."""
    if asked.tiny:
        return ((LLAMA_1B, _KNOBS[1]),)
    models = (LLAMA_1B,) if asked.short else _CASES
    return tuple((case, knobs) for knobs in _KNOBS for case in models)


def spec_of(case: Case, knobs: dict[str, Any], *, tiny: bool) -> SweepSpec:
    """A space of that one plan, of a model that draws no random numbers."""
    space = {"engine": ["torch"], "attention": ["sdpa"], "optimizer": ["adamw_fused"]}
    chosen = {"compile": [False]} | {name: [value] for name, value in knobs.items()}
    objective = _TINY_OBJECTIVE if tiny else _OBJECTIVE
    spec = case.spec(tiny=tiny, space=space | chosen, objective=objective)
    config = spec.model.config | (_NO_DROPOUT if case is GPT2_XL else {})
    return spec.model_copy(update={"model": spec.model.model_copy(update={"config": config})})


def measure(asked: Asked) -> Found:
    """Compares plan after plan while there is time."""
    wanted = cases(asked)
    kept = asked.out / KEPT
    lines = kept.read_text("utf-8").splitlines() if kept.exists() else ()
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    done = {(row["model"], row["knobs"]) for row in rows}
    for case, knobs in wanted:
        special = json.dumps(knobs)
        if (case.name, special) in done:
            continue
        if len(rows) > len(lines) and not asked.has(_LONGEST_SECONDS):
            break
        spec = spec_of(case, knobs, tiny=asked.tiny)
        plan = space_of(spec, asked.group.here(spec)).table.plan(0)
        told = {"model": case.name, "plan": plan_words(plan), "knobs": special}
        said = told | _compared(asked, spec, plan)
        rows.append(said)
        with kept.open("a", encoding="utf-8") as opened:
            opened.write(json.dumps(said) + "\n")
        print_line(
            f"{case.name}: {said['plan']}: {said['outcome']}, plain {said.get('plain_ratio')}"
        )
    return judged(rows, wanted=len(wanted))


def _compared(asked: Asked, spec: SweepSpec, plan: Plan) -> dict[str, Any]:
    """Rates of one plan in samples per second; the tool's are of before and after the scripts."""
    steps = TINY_STEPS if asked.tiny else STEPS
    report = asked.group.measure(spec, plan)
    first = report.outcome
    if not isinstance(first, Measured):
        return {"outcome": first.kind}
    asked.free_device()  # for its script
    with TemporaryDirectory(prefix="plimsoll-gpu-") as kept:
        folder = Path(kept, "exported")
        what = export_bundle(taken_from(spec, plan, report), "torchrun")
        write_bundle(what, taken_from(spec, plan, report), folder)
        told = ExportManifest.read(folder)
        ranks = observed_run(told, folder, steps=steps, seconds=_LONGEST_SECONDS)
        findings = findings_of(told, ranks)
        script = write_plain(folder, Path(kept, "plain"), spec, plan)
        plain = plain_rate(script, told, steps=steps, seconds=_LONGEST_SECONDS)
    again = asked.group.measure(spec, plan).outcome
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


def taken_from(spec: SweepSpec, plan: Plan, report: TrialFinished) -> ExportSource:
    """A trial as it is exported, without the study that it would else come from.

    Raises:
        ClusterError: If the trial has measured nothing.
    """
    if not isinstance(report.outcome, Measured) or report.fingerprint is None:
        raise ClusterError(f"nothing was measured that could be exported: {report.outcome}")
    record = Record(
        number=report.number,
        plan=plan,
        outcome=report.outcome,
        reason=IsBaseline(),
        started_at=report.started_at,
        ended_at=report.ended_at,
        fingerprint=report.fingerprint,
    )
    return ExportSource(
        study="honesty",
        spec=spec,
        model=prepare(spec),
        record=record,
        outcome=report.outcome,
        validation=None,
        device=report.fingerprint.device,
        hosts=1,
        loss_tolerance=loss_tolerance(record, (), spec, plan).share,
    )


def judged(rows: Sequence[dict[str, Any]], *, wanted: int) -> Found:
    """Judges how far plain loops were from what the tool said, at worst."""
    compared = [row for row in rows if row.get("plain_ratio")]
    worst = max((abs(row["plain_ratio"] - 1) for row in compared), default=None)
    exact = [row for row in compared if row["losses_hold"]]
    return Found(
        figures={"plans": len(compared), "worst": worst},
        rows=rows,
        shown=("model", "plan", "ours", "exported_ratio", "plain_ratio", "losses"),
        verdicts=(
            Verdict(
                what="plain loop's samples/s over the tool's",
                asked=f"within {WITHIN:.0%} for each plan",
                reached=None if worst is None else f"{worst:.1%} at worst of {len(compared)}",
                holds=None if worst is None else worst <= WITHIN,
            ),
            Verdict(
                what="exported script's losses are the trial's",
                asked=str(len(compared)),
                reached=str(len(exact)),
                holds=len(exact) == len(compared) if compared else None,
            ),
        ),
        left="" if len(rows) == wanted else f"{wanted - len(rows)} plans were not compared",
    )


if __name__ == "__main__":
    main("honesty", __doc__, measure)
