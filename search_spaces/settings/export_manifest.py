"""Manifest of an exported folder, which every export format writes besides its own files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pydantic import TypeAdapter, ValidationError

from search_spaces.errors import UserError
from search_spaces.facts import TargetRule
from search_spaces.plan import Plan
from search_spaces.safety.files import DOCUMENT_BYTES, read_bounded
from search_spaces.specification.load import load_spec
from search_spaces.specification.schema import SweepSpec
from search_spaces.specification.sections import Base, TrainSpec
from search_spaces.trial import Estimate

EXPORTED_FILE, SPEC_FILE = "plimsoll.json", "spec.yaml"
INPUTS = "inputs"  # the subfolder with carried inputs
CODE = "code"  # the input with the user's own modules
INPUTS_VARIABLE = "PLIMSOLL_INPUTS"  # environment variable: a folder to search first


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A file or folder that training reads: data, a tokenizer, a model's folder or modules.

    An input that is carried has been copied to the exported folder.
    """

    name: str  # path below `inputs/`, such as `data/topics.txt`
    source: str  # absolute path at the time of the export
    carried: bool

    @property
    def path(self) -> str:
        """The path in the exported specification: relative to the folder, or absolute."""
        return f"{INPUTS}/{self.name}" if self.carried else self.source

    def locate(self, folder: Path) -> Path:
        """Returns the path of the input.

        Raises:
            UserError: If it is missing; names the paths searched and how to set another one.
        """
        candidates = [folder.resolve() / self.path]
        if inputs_folder := os.environ.get(INPUTS_VARIABLE):
            candidates.insert(0, Path(inputs_folder).expanduser().resolve() / self.name)
        for candidate in candidates:
            if candidate.exists():
                return candidate
        searched = " and ".join(map(str, candidates))
        raise UserError(
            f"{self.name} is missing: searched at {searched}; put it there, or set"
            f" {INPUTS_VARIABLE} to a folder that holds {self.name}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportManifest:
    """The exported plan, the command that starts it, and the measurement that it should reproduce.

    Attributes:
        losses: Expected losses of the optimizer steps after the first one, which takes the longest
            samples.
        loss_tolerance: Largest difference from these losses, as a share of the largest loss.
        local: True if the command starts all ranks on the machine where it runs.
        base: How frozen weights are held beside adapters; None without adapters.
        files: Files of the format with the SHA-256 of their bytes, to detect changes by the user.
        caveats: Parts of the plan that the format leaves to the user.
        inputs: Files and folders that training reads.
        rule: What the loss of a user's function is a mean over; None to go by its batches' keys.
    """

    format: str
    study: str
    trial: int
    validated: bool
    command: str
    environment: tuple[tuple[str, str], ...]
    device: str  # "cpu" or "cuda"
    plan: Plan
    train: TrainSpec
    samples_per_second: Estimate
    step_seconds: Estimate
    peak_bytes: int
    losses: tuple[float, ...]
    loss_tolerance: float
    blocks: int
    recomputed_blocks: int
    local: bool
    files: tuple[tuple[str, str], ...]
    caveats: tuple[str, ...]
    inputs: tuple[Input, ...] = ()
    rule: TargetRule | None = None
    base: Base | None = None
    unused_weights: bool = False  # some get no gradient, so that their blocks are not recomputed

    def __post_init__(self) -> None:
        names = (*(name for name, _ in self.files), *(each.name for each in self.inputs))
        for name in names:
            if "\\" in name or not PurePosixPath(name).parts or not _stays_below(name):
                raise ValueError(f"{name!r} is not a file of the folder")

    def to_json(self) -> str:
        """Returns the manifest as indented JSON, for `read` and for people."""
        return _ADAPTER.dump_json(self, indent=1).decode() + "\n"

    @classmethod
    def read(cls, folder: Path) -> ExportManifest:
        """Reads the manifest that `plimsoll export` wrote to a folder.

        Raises:
            UserError: If the folder has no manifest, or it was changed.
        """
        file = folder / EXPORTED_FILE
        try:
            return _ADAPTER.validate_json(read_bounded(file, DOCUMENT_BYTES))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the file"
            raise UserError(
                f"{file} is not what plimsoll export wrote: {where}: {first['msg']}"
            ) from None
        except (OSError, ValueError) as error:  # ValueError: a name that cannot be encoded
            reason = error.strerror if isinstance(error, OSError) else error
            raise UserError(
                f"{file} cannot be read ({reason}): name a folder that plimsoll export wrote"
            ) from None


def _stays_below(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


_ADAPTER: TypeAdapter[ExportManifest] = TypeAdapter(ExportManifest)


def load_exported_spec(folder: Path) -> SweepSpec:
    """Loads the specification of an exported folder, with the current paths of its inputs.

    Raises:
        UserError: If the folder was not exported, or an input is missing.
    """
    spec = load_spec(folder / SPEC_FILE)
    paths = {each.path: str(each.locate(folder)) for each in ExportManifest.read(folder).inputs}
    return with_paths(spec, paths)


def with_paths(spec: SweepSpec, paths: dict[str, str]) -> SweepSpec:
    """Returns the specification with other paths of data files, tokenizer and model."""
    data, model = spec.data, spec.model
    tokenizer = None if data.tokenizer is None else paths.get(data.tokenizer, data.tokenizer)
    files = tuple(paths.get(file, file) for file in data.files)
    place, colon, function = model.name.rpartition(":")
    name = f"{paths[place]}:{function}" if colon and place in paths else model.name
    return spec.model_copy(
        update={
            "data": data.model_copy(update={"files": files, "tokenizer": tokenizer}),
            "model": model.model_copy(update={"name": paths.get(name, name)}),
        }
    )


def code_folder(folder: Path) -> Path | None:
    """Returns the folder with the user's own modules; None if no module is an input.

    Raises:
        UserError: If it is missing.
    """
    inputs = ExportManifest.read(folder).inputs
    return next((each.locate(folder) for each in inputs if each.name == CODE), None)


def missing_input(script: str) -> str | None:
    """Returns a sentence about the first missing input of an exported script; None if complete."""
    folder = Path(script).resolve().parent
    try:
        for each in ExportManifest.read(folder).inputs:
            each.locate(folder)
    except UserError as error:
        return f"{folder.name}: {error}"
    return None
