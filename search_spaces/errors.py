"""Errors that a user can cause, as one shallow tree, and the chain of an error's causes.

    UserError (ValueError)
    ├── SpecError      an invalid sweep specification; holds every fault at once
    ├── PlanError      a plan that breaks its own rules
    ├── ModelError     a model that cannot be found or built
    ├── DataError      data that cannot be read or turned into samples
    ├── ClusterError   a cluster that cannot be reached or cannot hold the sweep
    ├── DeviceError    an unknown device (search_spaces/hardware/names.py)
    ├── StudyError     a study or tracking store that cannot be opened
    └── MissingExtraError  a feature whose optional package is not installed

Each message addresses the person who typed the input: what is wrong, where, and how to fix it.
The command line prints it without a traceback, and exits with 2.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

MACHINE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE)
DISTRIBUTION = "plimsoll-tune"  # the name on PyPI; the command is `plimsoll`


class UserError(Exception):
    """Input that Plimsoll cannot use; the message says how to fix it."""


@contextlib.contextmanager
def written(target: Path | str) -> Iterator[None]:
    """Turns errors of writing files into one sentence that names the target.

    Raises:
        MachineError: If there is no room, or the file system takes nothing.
        UserError: If the file or folder cannot be written for another reason.
    """
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a name that cannot be encoded
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        is_machine = isinstance(error, OSError) and error.errno in MACHINE_ERRORS
        kind = MachineError if is_machine else UserError
        raise kind(f"{target} cannot be written: {reason}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of a specification.

    Attributes:
        path: Key with the fault, such as `train.global_batch`.
        advice: Description of a valid value.
        value: The key's value as text; empty if it has none.
    """

    path: str
    advice: str
    value: str = ""

    def __str__(self) -> str:
        value = f" is {self.value}" if self.value else ""
        return f"{self.path}{value}: {self.advice}"


class SpecError(UserError):
    """A specification with faults; holds all of them."""

    def __init__(self, source: str, faults: tuple[Fault, ...]) -> None:
        self.source = source
        self.faults = faults
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        super().__init__("\n".join([f"{source}: {count}", *(f"  - {fault}" for fault in faults)]))

    def __reduce__(self) -> tuple[type[SpecError], tuple[str, tuple[Fault, ...]]]:
        return (type(self), (self.source, self.faults))


class PlanError(UserError):
    """A plan that breaks its own rules; names every broken one."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        self.problems = problems
        super().__init__("not a plan: " + "; ".join(problems))

    def __reduce__(self) -> tuple[type[PlanError], tuple[tuple[str, ...]]]:
        return (type(self), (self.problems,))


class ModelError(UserError):
    """A model that cannot be found, configured or built."""


class DataError(UserError):
    """Data that cannot be read, tokenized or turned into samples."""


class ClusterError(UserError):
    """A Ray cluster that cannot be reached, or that can never hold the sweep."""


class MachineError(ClusterError):
    """A machine that cannot run the sweep now; the same command may run once it is mended."""


class StudyError(UserError):
    """A study or tracking store that cannot be opened or does not match the sweep."""


class StudyLost(StudyError):
    """The study's storage is unavailable, for longer than a sweep waits or when one starts."""


class TrackingLost(StudyError):
    """The MLflow store does not answer now, or answers with errors of its own."""


class MissingExtraError(UserError):
    """A feature whose package is not installed; names the extra that installs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionalPackage:
    """A package that only some features need.

    Attributes:
        module: Name of the module to import.
        title: Name as its project writes it.
        extra: Extra of `plimsoll-tune` that installs it.
        serves: Features that need it.
    """

    module: str
    title: str
    extra: str
    serves: str


OPTIONAL_PACKAGES = tuple(
    OptionalPackage(**entry)
    for entry in json.loads((files(__package__) / "optional_packages.json").read_text("utf-8"))
)
_BY_MODULE = {package.module: package for package in OPTIONAL_PACKAGES}


def missing_extra(module: str) -> str | None:
    """Returns a sentence if an optional package is missing, with the remedy; else None.

    Looks for the package without importing it.

    Args:
        module: A module of `OPTIONAL_PACKAGES`.
    """
    if importlib.util.find_spec(module) is not None:
        return None
    package = _BY_MODULE[module]
    return f"{package.title} is not installed; run `pip install '{DISTRIBUTION}[{package.extra}]'`"


def require(*modules: str) -> None:
    """Checks that optional packages are installed, before a feature first uses them.

    Raises:
        MissingExtraError: If one is not installed; names the command that installs it.
    """
    for module in modules:
        if (lack := missing_extra(module)) is not None:
            raise MissingExtraError(lack)


def exception_chain(error: BaseException) -> Iterator[BaseException]:
    """Yields the error, then its causes and contexts; each once, even in a cycle."""
    visited = set[int]()
    current: BaseException | None = error
    while current is not None and id(current) not in visited:
        visited.add(id(current))
        yield current
        current = current.__cause__ or current.__context__
