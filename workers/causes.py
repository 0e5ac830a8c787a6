"""Why a rank raised: told by the kinds of its exceptions and by whose code they came from."""

from __future__ import annotations

import errno
import site
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from search_spaces.outcome import CrashKind

# gloo raises plain RuntimeErrors; its texts name its own sources or say what the peer did
_COLLECTIVE = ("gloo/transport", "Connection closed by peer", "Connection reset by peer")
_DEVICE = ("CUDA error", "CUBLAS_STATUS", "CUDNN_STATUS")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_ROOT = Path(__file__).resolve().parents[1]
_LIBRARIES = tuple(
    str(Path(each).resolve())
    for each in (sysconfig.get_path("stdlib"), *site.getsitepackages(), site.getusersitepackages())
)
_OURS = tuple(str(_ROOT / name) for name in ("orchestrator", "search_spaces", "workers"))


def cause_of(error: BaseException, phase: str) -> CrashKind:
    """Why a rank raised.

    - "disk_full": the file system that was written to has no room, or its quota is used up.
    - "collective": a peer went away, or did not come in time.
    - "device_error": the device is in a state that only other processes leave behind.
    - "layout": the model could not be split or wrapped as the plan wants, in nobody's own code.
    - "exception": anything else, which is what the user's own code raises.

    Args:
        error: What was raised; what it was raised from counts too.
        phase: What was under way: "build", "forward", ...
    """
    chain = list(_chain(error))
    if any(isinstance(each, OSError) and each.errno in _FULL for each in chain):
        return "disk_full"
    if any(_is_collective(each) for each in chain):
        return "collective"
    if any(_is_of_device(each) for each in chain):
        return "device_error"
    return "layout" if phase == "build" and not any(map(_is_users, chain)) else "exception"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and what it was raised from or while handling."""
    seen = set[int]()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        yield at
        at = at.__cause__ or at.__context__


def _is_collective(error: BaseException) -> bool:
    return isinstance(error, dist.DistError) or any(text in str(error) for text in _COLLECTIVE)


def _is_of_device(error: BaseException) -> bool:
    kind = getattr(torch, "AcceleratorError", ())
    return isinstance(error, kind) or any(text in str(error) for text in _DEVICE)


def _is_users(error: BaseException) -> bool:
    """Whether code that is neither ours nor a library's is among what was running."""
    traced = error.__traceback__
    while traced is not None:
        name = traced.tb_frame.f_code.co_filename
        if not name.startswith("<") and not _is_known(str(Path(name).resolve())):
            return True
        traced = traced.tb_next
    return False


def _is_known(file: str) -> bool:
    return file.startswith((*_OURS, *_LIBRARIES))
