"""A folder that a plan was exported to: what every format writes beside its own files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from search_spaces.errors import UserError
from search_spaces.plan import Plan
from search_spaces.spec.load import load_spec
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Estimate

EXPORTED_FILE, SPEC_FILE = "plimsoll.json", "spec.yaml"
INPUTS = "inputs"  # the subfolder with carried inputs
CODE = "code"  # the input that holds the user's own modules
INPUTS_VARIABLE = "PLIMSOLL_INPUTS"  # environment: a folder that is searched first


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A file or folder that training reads: data, a tokenizer, a model's folder or modules.

    `name` is its path below `inputs/`, such as `data/topics.txt`. A carried input lies there; one
    that is not carried is read at `source`, the absolute path that it had where it was exported.
    """

    name: str
    source: str
    carried: bool

    @property
    def path(self) -> str:
        """The path that the exported specification has: relative to the folder, or absolute."""
        return f"{INPUTS}/{self.name}" if self.carried else self.source

    def candidates(self, folder: Path) -> Iterator[Path]:
        """Yields where the input may be, in the order in which it is searched."""
        if elsewhere := os.environ.get(INPUTS_VARIABLE):
            yield Path(elsewhere).expanduser().resolve() / self.name
        yield folder.resolve() / self.path

    def locate(self, folder: Path) -> Path:
        """Returns where the input is.

        Raises:
            UserError: If it is missing; names where it was searched and how to point elsewhere.
        """
        candidates = list(self.candidates(folder))
        for candidate in candidates:
            if candidate.exists():
                return candidate
        searched = " and ".join(map(str, candidates))
        raise UserError(
            f"{self.name} is missing: it was searched at {searched}; put it there, or set"
            f" {INPUTS_VARIABLE} to a folder that holds {self.name}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportManifest:
    """The plan, the command that starts it, and what its measurement promises.

    `losses` are of the optimizer steps after the first, which takes the longest samples; those
    of the same steps are to be no further off than `loss_tolerance` of the largest. `local` tells
    whether the command starts all ranks on the machine where it is said. `files` are those of the
    format with the SHA-256 of their bytes, so that it can be told which of them their user has
    changed since. `unsaid` is what the format leaves to its user. `inputs` are the files and
    folders that training reads.
    """

    format: str
    study: str
    trial: int
    validated: bool
    command: str
    environment: tuple[tuple[str, str], ...]
    device: str  # "cpu" or "cuda"
    plan: Plan
    samples_per_second: Estimate
    step_seconds: Estimate
    peak_bytes: int
    losses: tuple[float, ...]
    loss_tolerance: float
    blocks: int
    recomputed_blocks: int
    local: bool
    files: tuple[tuple[str, str], ...]
    unsaid: tuple[str, ...]
    inputs: tuple[Input, ...] = ()

    def to_json(self) -> str:
        """What `read` reads again, for a person to look at as well."""
        return _ADAPTER.dump_json(self, indent=1).decode() + "\n"

    @classmethod
    def read(cls, folder: Path) -> ExportManifest:
        """What `plimsoll export` has written into a folder.

        Raises:
            UserError: If it has not, or somebody has changed it.
        """
        file = folder / EXPORTED_FILE
        try:
            return _ADAPTER.validate_json(file.read_bytes())
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the file"
            raise UserError(
                f"{file} is not what plimsoll export wrote: {where}: {first['msg']}"
            ) from None
        except (OSError, ValueError) as error:  # ValueError: a name that no codec takes
            reason = error.strerror if isinstance(error, OSError) else error
            raise UserError(
                f"{file} cannot be read ({reason}): name a folder that plimsoll export wrote"
            ) from None


_ADAPTER: TypeAdapter[ExportManifest] = TypeAdapter(ExportManifest)


def load_exported_spec(folder: Path) -> SweepSpec:
    """Loads the specification of an exported folder, with the paths that its inputs have here.

    Raises:
        UserError: If the folder is not one that was exported, or an input is missing.
    """
    spec = load_spec(folder / SPEC_FILE)
    paths = {each.path: str(each.locate(folder)) for each in ExportManifest.read(folder).inputs}
    return with_paths(spec, paths)


def with_paths(spec: SweepSpec, paths: dict[str, str]) -> SweepSpec:
    """Replaces paths of a specification: data files, the tokenizer and the model's folder."""
    data, model = spec.data, spec.model
    tokenizer = None if data.tokenizer is None else paths.get(data.tokenizer, data.tokenizer)
    files = tuple(paths.get(file, file) for file in data.files)
    return spec.model_copy(
        update={
            "data": data.model_copy(update={"files": files, "tokenizer": tokenizer}),
            "model": model.model_copy(update={"name": paths.get(model.name, model.name)}),
        }
    )


def code_folder(folder: Path) -> Path | None:
    """Returns the folder that holds the user's own modules; None if no module is an input.

    Raises:
        UserError: If it is missing.
    """
    inputs = ExportManifest.read(folder).inputs
    return next((each.locate(folder) for each in inputs if each.name == CODE), None)


def missing_input(script: str) -> str | None:
    """Says which input of an exported script is missing, in one sentence; None if all are there."""
    folder = Path(script).resolve().parent
    try:
        for each in ExportManifest.read(folder).inputs:
            each.locate(folder)
    except UserError as error:
        return f"{folder.name}: {error}"
    return None
