"""The Python API: loads the best plan of a sweep and applies it to a model.

best = load_best("sweep.yaml")
best.apply(model)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from orchestrator.workspace import (
    SPEC_FILE,
    STORAGE_VARIABLE,
    NamedStudy,
    latest_spec,
    study_storage,
)
from search_spaces.errors import StudyError, UserError
from search_spaces.plan import Plan
from search_spaces.safety.files import is_file, is_folder
from search_spaces.safety.redaction import without_password
from search_spaces.settings.export_manifest import EXPORTED_FILE, ExportManifest, load_exported_spec
from search_spaces.specification.load import load_spec, study_name
from search_spaces.specification.schema import StudySpec, SweepSpec
from search_spaces.trial import Estimate, Measured

if TYPE_CHECKING:
    from orchestrator.core.records import Record
    from orchestrator.core.state import SweepState
    from orchestrator.report.explain_text import Explanation
    from workers.api import Applied, Module

_SQLITE_MAGIC = b"SQLite format 3\0"  # the first bytes of a SQLite file
_STUDY_FILE = "study.db"  # in a study's folder
_YAML = (".yaml", ".yml")
NO_SPEC_NOTE = (
    "it has no specification next to it; settings that the study does not record are at their"
    " defaults"
)


def find_study(named: str | None, *, option: str = "") -> NamedStudy:
    """Finds the study that a user named.

    A study's folder may be a copy from another machine; the database in the folder then holds it.

    Args:
        named: The file of a specification, the folder or name of a study, a SQLite file of studies,
            or the URL of a database; `#NAME` at the end selects one of several studies. None: the
            latest sweep in the current directory.
        option: The command-line option that named it, for messages; empty for an argument.

    Raises:
        StudyError: If there is no such study, or if a database holds several.
        SpecError: If the specification is invalid.
    """
    if named is None:
        path = latest_spec()
        spec = load_spec(path)
        return NamedStudy(spec=spec, name=study_name(spec, path))
    address, name = _split_name(named)
    if "://" in address:
        return _study_in_database(address, name, label=without_password(address))
    if _is_database(Path(address)):
        return _study_in_file(Path(address), name)
    return _study_of_spec(named, f"{option} " if option else "")


def _study_of_spec(named: str, option: str) -> NamedStudy:
    path = Path(named)
    candidates = (path, path / SPEC_FILE, Path(StudySpec().folder) / named / SPEC_FILE)
    spec_path = next(filter(is_file, candidates), None)
    if spec_path is None and path.suffix in _YAML and not is_folder(path):
        spec_path = path  # loading it reports that it does not exist
    if spec_path is None:
        return _study_in_shared_storage(named, option)
    spec = load_spec(spec_path)
    name = study_name(spec, spec_path)
    folder = path.parent if path.name == SPEC_FILE else path
    if study_storage(spec) is None and _is_database(folder / _STUDY_FILE):
        spec = _with_storage(spec, _sqlite_url(folder / _STUDY_FILE))
    return NamedStudy(spec=spec, name=name)


def _study_in_shared_storage(name: str, option: str) -> NamedStudy:
    """Finds a study in the storage that the environment names, if it names one."""
    storage = os.environ.get(STORAGE_VARIABLE)
    if storage and name in _subjects(storage):
        return _study_in_database(storage, name, label=without_password(storage))
    where = f" or {STORAGE_VARIABLE}" if storage else ""
    raise StudyError(
        f"{option}{name} is neither a specification nor a study in {StudySpec().folder}{where}"
    )


def _study_in_file(path: Path, name: str) -> NamedStudy:
    """Finds a study in a SQLite file; uses the specification next to it if it is its own."""
    spec_path, url = path.parent / SPEC_FILE, _sqlite_url(path)
    if is_file(spec_path):
        spec = load_spec(spec_path)
        own_name = study_name(spec, spec_path)
        if own_name in _subjects(url) and name in ("", own_name):
            return NamedStudy(spec=_with_storage(spec, url), name=own_name)
    return _study_in_database(url, name, label=str(path))


def _study_in_database(url: str, name: str, *, label: str) -> NamedStudy:
    """Finds a study in a database, and makes its specification from what the study records."""
    subjects = _subjects(url)
    names = ", ".join(sorted(subjects)) or "none"
    if name and name not in subjects:
        raise StudyError(f"{label} holds no study {name}; it holds {names}")
    if not name and len(subjects) != 1:
        raise StudyError(
            f"{label} does not hold exactly one study, it holds {names}: give the specification of"
            f" one, or {label}#NAME"
        )
    name = name or next(iter(subjects))
    try:
        spec = SweepSpec.model_validate(subjects[name])
    except ValidationError as error:
        key = ".".join(map(str, error.errors()[0]["loc"]))
        raise StudyError(
            f"{label}: cannot read {key} of the job of study {name}: give its specification"
        ) from None
    spec = _with_storage(spec, url)
    return NamedStudy(spec=spec, name=name, note=NO_SPEC_NOTE)


def _subjects(url: str) -> Mapping[str, Mapping[str, Any]]:
    from orchestrator.study.reader import stored_studies

    return stored_studies(url)


def _with_storage(spec: SweepSpec, url: str) -> SweepSpec:
    study = spec.study.model_copy(update={"storage": url})
    return spec.model_copy(update={"study": study})


def _sqlite_url(path: Path) -> str:
    return f"sqlite:///{path}"


def _split_name(named: str) -> tuple[str, str]:
    address, mark, name = named.rpartition("#")
    if mark and ("://" in address or _is_database(Path(address))):
        return address, name
    return named, ""


def _is_database(path: Path) -> bool:
    if not is_file(path):  # a pipe would wait for its writer
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC
    except OSError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TunedPlan:
    """A plan of a study with its measured speed and peak memory, and the sweep's specification."""

    study: str
    trial: int
    spec: SweepSpec
    plan: Plan
    device: str  # "cpu" or "cuda": the type that it was measured on
    samples_per_second: Estimate
    peak_bytes: int

    def __repr__(self) -> str:
        speed = f"{self.samples_per_second.value:.4g} samples/s"
        return f"<TunedPlan: trial {self.trial} of {self.study}, {speed}>"

    def apply(self, model: Module) -> Applied:
        """Applies the plan to a model in place, as the trial did; call it on each rank.

        Raises:
            ClusterError: If the number of ranks differs from the plan's, or if CUDA is missing.
            ModelError: If the model has another architecture than the sweep's.
        """
        from workers.api import apply_plan

        return apply_plan(model, self.plan, self.spec)

    def training_arguments(self, **changes: Any) -> dict[str, Any]:
        """Returns the plan for Hugging Face's Trainer.

            arguments = TrainingArguments(**best.training_arguments())

        Call `prepare` too: it applies what these arguments cannot express. How samples are batched
        is your dataset's and collator's: pass it `pad_to_multiple_of=best.plan.pad_multiple`.

        Args:
            changes: Arguments that override those of the plan and the specification. Yours to
                choose are `output_dir`, `max_steps`, saving and logging.

        Raises:
            UserError: If Trainer cannot train the plan.
        """
        from orchestrator.export import hf_trainer
        from search_spaces.settings.trainer_refusals import decay_refusals
        from search_spaces.settings.trainers import trainer_table
        from workers.models.facts import model_facts
        from workers.models.hub import divides_by_label_count

        plan, spec, device = self.plan, self.spec, self.device
        facts = model_facts(spec.model, spec.train)
        batched = replace(facts, vocab_size=facts.vocab_size or 1)  # batches are the caller's
        reasons = [
            *trainer_table()["hf-trainer"].refusals(plan, spec, batched, device),
            *decay_refusals(plan, spec.train, stock=True),
            *hf_trainer.loading_refusals(plan),
        ]
        is_function = facts.vocab_size is None  # whose loss is the user's own
        if not reasons and not is_function and not divides_by_label_count(spec.model):
            reasons = [*hf_trainer.stock_refusals(plan, facts)]
        if reasons:
            words = "; ".join(dict.fromkeys(reasons))
            raise UserError(f"Trainer cannot train the plan of trial {self.trial}: {words}")
        arguments = hf_trainer.training_arguments(plan, facts, spec, device)
        if plan.engine == "deepspeed":
            arguments["deepspeed"] = hf_trainer.deepspeed_config(plan, facts, spec, device)
        return arguments | changes

    def prepare(self, model: Module) -> Module:
        """Applies to a model in place what `training_arguments` cannot express.

        These are the attention, recomputation of a part of the blocks, and compilation. Pass the
        model that is returned to Trainer.

        Raises:
            ModelError: If the model has another architecture than the sweep's.
        """
        from orchestrator.export.hf_trainer import all_recomputed
        from workers.api import prepare_blocks

        return prepare_blocks(model, self.plan, self.spec, recompute=not all_recomputed(self.plan))


def load_best(where: str | Path | None = None, *, trial: int | None = None) -> TunedPlan:
    """Loads the best plan of a sweep, or the plan of another trial.

    Args:
        where: A study, by its specification, folder, name or database; or a folder that `plimsoll
            export` wrote, which also works on other machines. None: the latest sweep in the current
            directory.
        trial: The number of the trial; None: the best. Ignored for an exported folder, which holds
            one plan.

    Raises:
        UserError: If there is no such study or trial, or if it was not measured.
    """
    if where is not None and is_file(Path(where) / EXPORTED_FILE):
        return _load_exported(Path(where))

    from orchestrator.export.source import record_to_export
    from orchestrator.study.reader import load_state

    study = find_study(None if where is None else str(where))
    state = load_state(study.spec, study.name)
    record = record_to_export(state, trial)
    outcome = record.outcome
    assert isinstance(outcome, Measured)
    return TunedPlan(
        study=study.name,
        trial=record.number,
        spec=study.spec,
        plan=record.plan,
        device=_device(record, state),
        samples_per_second=outcome.samples_per_second,
        peak_bytes=outcome.memory.peak_bytes,
    )


def explain(state: SweepState, trial: int | None, knobs: Mapping[str, Any]) -> Explanation | None:
    """Explains a trial, a plan or the best; raises UserError for no such trial or forecast."""
    from orchestrator.explain.context import forecast_context, forecasts_or_reason
    from orchestrator.explain.trial import explain_trial, trial_named
    from orchestrator.explain.untried import explain_untried
    from orchestrator.explain.winner import explain_best

    if knobs:
        untried = explain_untried(knobs, forecast_context(state))
        if untried.trial is None or untried.verdict != "tried":
            return untried
        trial = untried.trial
    context, note = forecasts_or_reason(state)
    if trial is not None:
        explanation = explain_trial(state, trial_named(state, trial), context, note)
        return replace(explanation, named_by_knobs=bool(knobs))
    return None if state.best is None else explain_best(state, state.best, context, note)


def _device(record: Record, state: SweepState) -> str:
    fingerprint = record.fingerprint or state.fingerprint
    return "cpu" if fingerprint is None else fingerprint.device


def _load_exported(folder: Path) -> TunedPlan:
    manifest = ExportManifest.read(folder)
    return TunedPlan(
        study=manifest.study,
        trial=manifest.trial,
        spec=load_exported_spec(folder),
        plan=manifest.plan,
        device=manifest.device,
        samples_per_second=manifest.samples_per_second,
        peak_bytes=manifest.peak_bytes,
    )
