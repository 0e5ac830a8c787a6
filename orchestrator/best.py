"""The answer of a sweep, for code that uses it: `load_best("sweep.yaml").apply(model)`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from search_spaces.estimate import Estimate
from search_spaces.exported import EXPORTED_FILE, SPEC_FILE, Exported
from search_spaces.outcome import Measured
from search_spaces.plan import Plan
from search_spaces.spec.load import load_spec
from search_spaces.spec.schema import SweepSpec

if TYPE_CHECKING:
    from workers.applied import Applied, Module


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """A plan of a study, what it was measured to reach, and the specification it belongs to."""

    study: str
    trial: int
    spec: SweepSpec
    plan: Plan
    samples_per_second: Estimate
    peak_bytes: int

    def apply(self, model: Module) -> Applied:
        """Does to a model, in place and in each rank, what the trial did to the study's.

        Raises:
            ClusterError: If there are not as many ranks as the plan has, or no CUDA.
            ModelError: If the model is not of the architecture that was searched for.
        """
        from workers.applied import apply_plan

        return apply_plan(model, self.plan, self.spec)


def load_best(where: str | Path | None = None, *, trial: int | None = None) -> Best:
    """The answer of a sweep, or another trial of it.

    Args:
        where: A specification whose sweep has run, or a folder that `plimsoll export` wrote, which
            can be taken to other machines; without it the latest sweep of this folder.
        trial: Its number, where not the answer is wanted. A folder holds one alone.

    Raises:
        UserError: If there is nothing there, or nothing that was measured.
    """
    if where is not None and (Path(where) / EXPORTED_FILE).is_file():
        return _exported(Path(where))

    from orchestrator.export.taken import chosen_record
    from orchestrator.latest import spec_and_name
    from orchestrator.stored import load_state

    spec, name = spec_and_name(None if where is None else Path(where))
    record = chosen_record(load_state(spec, name), trial)
    outcome = record.outcome
    assert isinstance(outcome, Measured)
    return Best(
        study=name,
        trial=record.number,
        spec=spec,
        plan=record.plan,
        samples_per_second=outcome.samples_per_second,
        peak_bytes=outcome.memory.peak_bytes,
    )


def _exported(folder: Path) -> Best:
    kept = Exported.read(folder)
    return Best(
        study=kept.study,
        trial=kept.trial,
        spec=load_spec(folder / SPEC_FILE),
        plan=kept.plan,
        samples_per_second=kept.samples_per_second,
        peak_bytes=kept.peak_bytes,
    )
