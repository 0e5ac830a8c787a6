"""Plans to export, and runs of the exported folders."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from orchestrator.core.losses import TOLERANCE_FP32
from orchestrator.core.reasons import IsBaseline
from orchestrator.core.records import Record
from orchestrator.export.observed_run import environment_of, ranks_in
from orchestrator.export.source import ExportSource
from orchestrator.export.verify import check_run
from search_spaces.facts import ModelFacts
from search_spaces.plan import Plan
from search_spaces.settings.export_manifest import ExportManifest
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Measured
from tests.outcomes import make_measured
from tests.workers.test_same_training import SPEC
from workers.models.function_probe import with_function_findings
from workers.prepare import prepare

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent
STEPS = 5
# Of the first step's gradient less than its norm, of the others' more: AdamW alone would not tell
# a gradient from its half
CLIP = 3.0


def taken_of(plan: Plan, *, hosts: int = 1, spec: SweepSpec = SPEC, **train: Any) -> ExportSource:
    """Returns the plan as if it had been measured; `train` overrides keys of the specification."""
    spec = spec.model_copy(update={"train": spec.train.model_copy(update=train)})
    model = with_function_findings(prepare(spec), spec.model, spec.train)
    return source_of(plan, spec, model, hosts=hosts)


def source_of(
    plan: Plan, spec: SweepSpec, model: ModelFacts, device: str = "cpu", *, hosts: int = 1
) -> ExportSource:
    """Returns a plan as if it had been measured by a sweep of a specification."""
    outcome = make_measured(20.0, 0.3)
    assert isinstance(outcome, Measured)
    record = Record(
        number=3,
        plan=plan,
        outcome=outcome,
        reason=IsBaseline(),
        started_at=0.0,
        ended_at=1.0,
        fingerprint=None,
    )
    return ExportSource(
        study="nightly",
        spec=spec,
        model=model,
        record=record,
        outcome=outcome,
        validation=None,
        device=device,
        hosts=hosts,
        loss_tolerance=TOLERANCE_FP32,
    )


def run_folder(folder: Path, *, steps: int) -> list[dict[str, Any]]:
    """Runs an exported folder with its own command; returns the lines of JSON that it printed.

    A recorder in its processes checks that they train by the plan.
    """
    kept = ExportManifest.read(folder)
    recordings = folder.with_name(f"{folder.name}-recordings")
    recordings.mkdir()
    given = environment_of(kept, recordings)
    ran = subprocess.run(
        [*shlex.split(kept.command), "--steps", str(steps)],
        cwd=folder,
        env=given
        | {
            # this checkout, for the model and the data
            "PYTHONPATH": os.pathsep.join([given["PYTHONPATH"], str(ROOT)]),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    findings = check_run(kept, sorted(ranks_in(recordings), key=lambda rank: rank.settings.rank))
    timed = ("losses", "samples/s")  # of a record that is made up
    differ = [one for one in findings if one.passed is False and one.check not in timed]
    assert not differ, differ
    unseen = [one.check for one in findings if one.passed is None and one.check not in timed]
    assert set(unseen) <= {"micro-batch"}, unseen  # of packed samples
    return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
