"""The answer of a sweep, for code that uses it: `load_best("sweep.yaml").apply(model)`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.workspace import (
    SPEC_FILE,
    STORAGE_VARIABLE,
    NamedStudy,
    is_file,
    latest_spec,
    study_storage,
)
from search_spaces.errors import StudyError, UserError
from search_spaces.plan import Plan
from search_spaces.settings.export_manifest import EXPORTED_FILE, ExportManifest, load_exported_spec
from search_spaces.spec.load import load_spec, study_name
from search_spaces.spec.redaction import without_password
from search_spaces.spec.schema import StudySpec, SweepSpec
from search_spaces.trial import Estimate, Measured

if TYPE_CHECKING:
    from orchestrator.core.state import SweepState
    from search_spaces.trial import Record
    from workers.api import Applied, Module

_DATABASE = b"SQLite format 3\0"  # the first bytes of such a file


_STUDY_FILE = "study.db"  # in a study's folder


_YAML = (".yaml", ".yml")


NO_SPEC = "it has no specification beside it: what its study does not tell is at its default"


def find_study(named: str | None, *, option: str = "") -> NamedStudy:
    """Finds the study that a user means.

    A study's folder may have been copied from another machine: a database in it is that study.

    Args:
        named: A specification's file, a study's folder or name, a SQLite file of studies or a
            database's URL, of several studies with `#NAME` at its end; None: the latest sweep of
            the current directory.
        option: The option that names it, for messages; empty for an argument.

    Raises:
        StudyError: If there is no such study, or a database holds several.
        SpecError: If the specification has faults.
    """
    if named is None:
        path = latest_spec()
        spec = load_spec(path)
        return NamedStudy(spec=spec, name=study_name(spec, path))
    address, wanted = _address(named)
    if "://" in address:
        return _of_database(address, wanted, shown=without_password(address))
    if _is_database(Path(address)):
        return _of_file(Path(address), wanted)
    return _of_specification(named, f"{option} " if option else "")


def _of_specification(named: str, option: str) -> NamedStudy:
    path = Path(named)
    places = (path, path / SPEC_FILE, Path(StudySpec().folder) / named / SPEC_FILE)
    place = next(filter(is_file, places), None)
    if place is None and path.suffix in _YAML and not path.is_dir():
        place = path  # which says that it does not exist
    if place is None:
        return _of_shared_storage(named, option)
    spec = load_spec(place)
    name = study_name(spec, place)
    folder = path.parent if path.name == SPEC_FILE else path
    if study_storage(spec) is None and _is_database(folder / _STUDY_FILE):
        spec = _kept_in(spec, _sqlite(folder / _STUDY_FILE))
    return NamedStudy(spec=spec, name=name)


def _of_shared_storage(name: str, option: str) -> NamedStudy:
    """The study of that name in the storage that the environment names, if it names one."""
    storage = os.environ.get(STORAGE_VARIABLE)
    if storage and name in _held(storage):
        return _of_database(storage, name, shown=without_password(storage))
    where = f" or {STORAGE_VARIABLE}" if storage else ""
    raise StudyError(
        f"{option}{name} is neither a specification nor a study in {StudySpec().folder}{where}"
    )


def _of_file(path: Path, wanted: str) -> NamedStudy:
    """A study in a SQLite file: with the specification beside it, if that is the study's."""
    beside = path.parent / SPEC_FILE
    if is_file(beside):
        spec = load_spec(beside)
        name = study_name(spec, beside)
        if name in _held(_sqlite(path)) and wanted in ("", name):
            return NamedStudy(spec=_kept_in(spec, _sqlite(path)), name=name)
    return _of_database(_sqlite(path), wanted, shown=str(path))


def _of_database(url: str, wanted: str, *, shown: str) -> NamedStudy:
    """The study in a database, whose specification is made from what the study says it measured."""
    held = _held(url)
    names = ", ".join(sorted(held)) or "none"
    if wanted and wanted not in held:
        raise StudyError(f"{shown} holds no study {wanted} but {names}")
    if not wanted and len(held) != 1:
        raise StudyError(
            f"{shown} holds no single study but {names}: give the specification of one, or"
            f" {shown}#NAME"
        )
    name = wanted or next(iter(held))
    return NamedStudy(spec=_kept_in(_from_subject(held[name]), url), name=name, note=NO_SPEC)


def _held(url: str) -> Mapping[str, Mapping[str, Any]]:
    from orchestrator.study.reader import held_studies

    return held_studies(url)


def _from_subject(subject: Mapping[str, Any]) -> SweepSpec:
    """The specification as far as a study tells what it measured."""
    tree = {section: dict(keys) for section, keys in subject.items()}
    kinds = tree.get("cluster", {}).get("accelerators")
    if kinds:
        tree["cluster"]["accelerators"] = {
            name: {"memory_gib": limit} for name, limit in kinds.items()
        }
    return SweepSpec.model_validate(tree)


def _kept_in(spec: SweepSpec, url: str) -> SweepSpec:
    study = spec.study.model_copy(update={"storage": url})
    return spec.model_copy(update={"study": study})


def _sqlite(path: Path) -> str:
    return f"sqlite:///{path}"


def _address(named: str) -> tuple[str, str]:
    """A database and the study in it; the whole and nothing where no `#` parts them."""
    address, mark, name = named.rpartition("#")
    if mark and ("://" in address or _is_database(Path(address))):
        return address, name
    return named, ""


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_DATABASE)) == _DATABASE
    except (OSError, ValueError):  # no file, or no name of one
        return False


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
        from workers.models.load import describe

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
    kept = ExportManifest.read(folder)
    return Best(
        study=kept.study,
        trial=kept.trial,
        spec=load_exported_spec(folder),
        plan=kept.plan,
        device=kept.device,
        samples_per_second=kept.samples_per_second,
        peak_bytes=kept.peak_bytes,
    )
