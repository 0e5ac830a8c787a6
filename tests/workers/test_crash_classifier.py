"""Tests crash causes on errors raised as libraries and users raise them."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from search_spaces.trial import CrashKind
from workers.outcomes import crash_cause


def raised(code: str, file: str) -> Exception:
    """Runs code from a file and returns the exception that it raises."""
    with pytest.raises(Exception) as found:  # noqa: PT011  any kind, that is the question
        exec(compile(code, file, "exec"), {"torch": torch, "dist": dist})
    return found.value


USERS = str(Path.home() / "project" / "model.py")
LIBRARYS = torch.nn.__file__
FULL = f"raise OSError({errno.ENOSPC}, 'No space left on device')"
# as torch does when a file that it writes into raises
WRAPPED = f"try:\n    {FULL}\nfinally:\n    raise RuntimeError('unexpected pos 64 vs 0')"
COLLECTIVE = "raise dist.DistBackendError('so')"
GLOO = (
    "raise RuntimeError('[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed')"
)


@pytest.mark.parametrize(
    ("code", "phase", "cause"),
    [
        (FULL, "forward", "disk_full"),
        (WRAPPED, "checkpoint", "disk_full"),
        (f"raise OSError({errno.EDQUOT}, 'Disk quota exceeded')", "build", "disk_full"),
        (f"raise OSError({errno.EACCES}, 'Permission denied')", "forward", "exception"),
        (COLLECTIVE, "backward", "collective"),
        (GLOO, "build", "collective"),
        ("raise RuntimeError('CUDA error: an illegal memory access')", "forward", "device_error"),
        ("raise ValueError('so')", "forward", "exception"),
    ],
)
@pytest.mark.parametrize("file", [USERS, LIBRARYS])
def test_causes_are_those_of_the_errors(code: str, phase: str, cause: CrashKind, file: str) -> None:
    assert crash_cause(raised(code, file), phase) == cause


@pytest.mark.parametrize(
    ("file", "phase", "cause"),
    [
        (LIBRARYS, "build", "layout"),
        (LIBRARYS, "forward", "exception"),
        (USERS, "build", "exception"),
    ],
)
def test_what_cannot_be_built_by_nobodys_own_code_is_the_layouts(
    file: str, phase: str, cause: CrashKind
) -> None:
    code = "from workers.outcomes import cause_of\ntorch.nn.Linear(2, 2)(torch.ones(3))"
    error = raised(code, file)
    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # not this test's

    assert crash_cause(error, phase) == cause
