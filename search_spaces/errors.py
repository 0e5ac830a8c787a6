"""Errors that a user can cause, as one shallow tree.

    UserError (ValueError)
    ├── SpecError      a sweep specification that cannot be used; holds every fault at once
    ├── PlanError      a plan that breaks its own rules
    ├── ModelError     a model that cannot be found or built
    ├── DataError      data that cannot be read or turned into samples
    ├── ClusterError   a cluster that cannot be reached or cannot hold the sweep
    ├── DeviceError    a device that nobody knows (search_spaces/hardware/names.py)
    ├── StudyError     a study or tracking store that cannot be opened
    └── MissingExtraError  a feature whose optional package is not installed

Each message is for the person who typed the input: what was wrong, where, and what would
be right. The command line prints it alone, without a traceback, and exits with 2.
"""

from __future__ import annotations

from dataclasses import dataclass


class UserError(Exception):
    """Input that Plimsoll cannot use; the message says what would be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing wrong with a specification.

    `path` is where it stands (`train.global_batch`), `value` what stands there as text
    (empty if nothing does), `advice` what would be valid.
    """

    path: str
    value: str
    advice: str

    def __str__(self) -> str:
        shown = f" is {self.value}" if self.value else ""
        return f"{self.path}{shown}: {self.advice}"


class SpecError(UserError):
    """A specification with faults, all of them at once."""

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
    """A Ray cluster that cannot be reached, or that can never hold what was asked."""


class StudyError(UserError):
    """A study or tracking store that cannot be opened or does not match the sweep."""


class MissingExtraError(UserError):
    """A feature that needs a package which is not installed; names the extra that brings it."""
