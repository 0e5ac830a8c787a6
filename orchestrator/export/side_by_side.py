"""Speed of an exported folder beside its plan's trial, both run in turn in the same minutes.

The record is of another hour, in which the machine may have had less other work. A folder that is
slower than it is compared with trials of now, which run without Ray.
"""

import json
import sys
import tempfile
from pathlib import Path
from statistics import median

from orchestrator.export.observed_run import observed_run, run_in, start_variables
from orchestrator.export.verify import Finding, observed_speed, speed_finding
from orchestrator.report.format import spread
from search_spaces.errors import UserError
from search_spaces.settings.export_manifest import ExportManifest, code_folder, load_exported_spec
from search_spaces.specification.load import spec_to_yaml
from search_spaces.trial import Estimate, Measured, outcome_from_json

ROUNDS = 2  # of a trial and a run of the folder


def compared_again(
    manifest: ExportManifest, folder: Path, *, steps: int, seconds: float
) -> Finding | None:
    """Runs trial and folder in turn, and compares their samples per second.

    Args:
        manifest: The manifest of the folder.
        folder: The exported folder.
        steps: Optimizer steps of each run of the folder.
        seconds: Time limit of each run.

    Returns:
        What was found; None if a trial cannot be measured here.

    Raises:
        UserError: If a run of the folder fails.
    """
    trials, runs = [], []
    for _ in range(ROUNDS):
        if (trial := _trial_speed(manifest, folder, seconds)) is None:
            return None
        ranks = observed_run(manifest, folder, steps=steps, seconds=seconds)
        if (run := observed_speed(manifest.plan, ranks[0])) is None:
            return None
        trials.append(trial)
        runs.append(run)
    expected = _together(trials)
    return speed_finding(expected, _together(runs), f"{spread(expected)}, measured in turn")


def _together(estimates: list[Estimate]) -> Estimate:
    """Returns the median, with an interval that covers those of all."""
    return Estimate(
        value=median(one.value for one in estimates),
        low=min(one.low for one in estimates),
        high=max(one.high for one in estimates),
    )


def _trial_speed(manifest: ExportManifest, folder: Path, seconds: float) -> Estimate | None:
    """Returns the samples per second of the plan's trial; None if it was not measured."""
    try:
        exported, place = load_exported_spec(folder), code_folder(folder) or folder
    except UserError:  # the user replaced the data, and removed what was exported
        return None
    with tempfile.TemporaryDirectory(prefix="plimsoll-") as temporary:
        spec, plan, told = (Path(temporary, name) for name in ("spec.yaml", "plan.json", "told"))
        spec.write_text(spec_to_yaml(exported), encoding="utf-8")
        plan.write_text(json.dumps(manifest.plan.as_dict()), encoding="utf-8")
        command = ["-m", "plimsoll", "trial", str(spec), "--plan", str(plan), "--json"]
        if (ranks := manifest.plan.world_size) > 1:
            launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
            command = [*launcher, str(ranks), *command]
        # a user's module is trusted if it is below the working directory
        with told.open("wb") as stdout, Path(temporary, "log").open("wb") as stderr:
            variables = {**start_variables(manifest), "PYTHONSAFEPATH": "1"}  # no other modules
            failure = run_in(place, [sys.executable, *command], variables, seconds, stdout, stderr)
        if failure:
            return None
        outcome = outcome_from_json(json.loads(told.read_bytes())["result"])
    return outcome.samples_per_second if isinstance(outcome, Measured) else None
