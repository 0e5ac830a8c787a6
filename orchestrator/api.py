"""The answer of a sweep, for code that uses it: `load_best("sweep.yaml").apply(model)`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search_spaces.errors import UserError
from search_spaces.estimate import Estimate
from search_spaces.exported import EXPORTED_FILE, Exported, load_exported_spec
from search_spaces.outcome import Measured
from search_spaces.plan import Plan
from search_spaces.spec.schema import SweepSpec

if TYPE_CHECKING:
    from orchestrator.core.state import SweepState
    from search_spaces.record import Record
    from workers.api import Applied, Module


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """A plan of a study, what it was measured to reach, and the specification it belongs to."""

    study: str
    trial: int
    spec: SweepSpec
    plan: Plan
    device: str  # "cpu" or "cuda", that it was measured on
    samples_per_second: Estimate
    peak_bytes: int

    def apply(self, model: Module) -> Applied:
        """Does to a model, in place and in each rank, what the trial did to the study's.

        Raises:
            ClusterError: If there are not as many ranks as the plan has, or no CUDA.
            ModelError: If the model is not of the architecture that was searched for.
        """
        from workers.api import apply_plan

        return apply_plan(model, self.plan, self.spec)

    def training_arguments(self, **changes: Any) -> dict[str, Any]:
        """The plan for Hugging Face's Trainer: `TrainingArguments(**best.training_arguments())`.

        With `prepare`, which does what these have no word for. `changes` go before what the plan
        and the specification say: `output_dir`, `max_steps`, saving and logging are yours.

        Raises:
            UserError: If Trainer cannot train the plan.
        """
        from orchestrator.export import hf_trainer
        from workers.models import describe

        plan, spec, device = self.plan, self.spec, self.device
        facts = describe(spec.model, spec.train)
        reasons = [*hf_trainer.refusals(plan), *hf_trainer.misfits(plan, facts, device)]
        if reasons:
            raise UserError(
                f"Trainer cannot train the plan of trial {self.trial}: {'; '.join(reasons)}"
            )
        told = hf_trainer.training_arguments(plan, spec, device)
        if plan.engine == "deepspeed":
            told["deepspeed"] = hf_trainer.deepspeed_config(plan, facts, spec, device)
        return told | changes

    def prepare(self, model: Module) -> Module:
        """Chooses the attention, recomputes a part of the blocks, compiles them: in place.

        What `training_arguments` say is left to Trainer; the model is what it takes.

        Raises:
            ModelError: If the model is not of the architecture that was searched for.
        """
        from orchestrator.export.hf_trainer import all_recomputed
        from workers.api import prepare_blocks

        return prepare_blocks(model, self.plan, self.spec, recompute=not all_recomputed(self.plan))


def load_best(where: str | Path | None = None, *, trial: int | None = None) -> Best:
    """The answer of a sweep, or another trial of it.

    Args:
        where: A study, by its specification, folder, name or database, or a folder that `plimsoll
            export` wrote, which can be taken to other machines; without it the latest sweep here.
        trial: Its number, where not the answer is wanted. A folder holds one alone.

    Raises:
        UserError: If there is nothing there, or nothing that was measured.
    """
    if where is not None and (Path(where) / EXPORTED_FILE).is_file():
        return _exported(Path(where))

    from orchestrator.export.source import chosen_record
    from orchestrator.study.reader import load_state
    from orchestrator.workspace import find_study

    found = find_study(None if where is None else str(where))
    state = load_state(found.spec, found.name)
    record = chosen_record(state, trial)
    outcome = record.outcome
    assert isinstance(outcome, Measured)
    return Best(
        study=found.name,
        trial=record.number,
        spec=found.spec,
        plan=record.plan,
        device=_device(record, state),
        samples_per_second=outcome.samples_per_second,
        peak_bytes=outcome.memory.peak_bytes,
    )


def _device(record: Record, state: SweepState) -> str:
    seen = record.fingerprint or state.fingerprint
    return "cpu" if seen is None else seen.device


def _exported(folder: Path) -> Best:
    kept = Exported.read(folder)
    return Best(
        study=kept.study,
        trial=kept.trial,
        spec=load_exported_spec(folder),
        plan=kept.plan,
        device=kept.device,
        samples_per_second=kept.samples_per_second,
        peak_bytes=kept.peak_bytes,
    )
