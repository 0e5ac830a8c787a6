"""Provenance of a sweep: who started it, from which code, on which data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeVersion:
    """The commit that a folder stands at.

    `branch` is empty for a detached head, `remote` for a repository without one; `modified` says
    whether tracked files differ from the commit.
    """

    commit: str
    branch: str
    remote: str  # a URL without user, password and query
    modified: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthBin:
    """Samples of `shortest` to `longest` tokens, both included."""

    shortest: int
    longest: int
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataProfile:
    """The samples that a sweep trains on.

    The digest changes with any token and any length, so it changes with the files, the tokenizer,
    the sequence length and, for generated samples, the seed.
    """

    name: str
    digest: str
    files: tuple[str, ...]  # absolute paths; none: the samples are generated
    tokenizer: str  # empty: trained on the files, or none is needed
    samples: int
    tokens: int
    histogram: tuple[LengthBin, ...]  # by length, without empty bins


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """User, code and data of a sweep, as a driver knew them when it began.

    `is_job` says whether a scheduler ran it: a Ray job or Slurm. `context` are the tags of
    `MLFLOW_RUN_CONTEXT`, which go before all others. `data` is None for models that make their
    own batches.
    """

    at: float  # seconds since the epoch
    user: str
    is_job: bool
    code: CodeVersion | None
    context: tuple[tuple[str, str], ...] = ()
    data: DataProfile | None = None


def provenance_at(provenances: Sequence[Provenance], moment: float) -> Provenance | None:
    """The provenance of the driver that was at work at a moment, in seconds since the epoch.

    None before the first of them began.
    """
    begun = [provenance for provenance in provenances if provenance.at <= moment]
    return max(begun, key=lambda provenance: provenance.at, default=None)
