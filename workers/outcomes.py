"""One outcome out of what each rank says: a failure is everybody's, and its cause counts.

Plain functions of values; how the ranks exchange them is `workers.worker`.
"""

from __future__ import annotations

import errno
import site
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from search_spaces.trial import Crashed, CrashKind, Diverged, Measured, Outcome, OutOfMemory

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


def agree(endings: Sequence[Outcome]) -> Outcome:
    """The outcome of a trial from the endings of its ranks, in the order of ranks.

    When one rank fails, its peers fail too, in the collective in which they wait for it. So a
    cause goes before what followed from it: out of memory, then a loss that is no number, then
    any crash of a rank's own, then a broken collective.
    """
    for choose in (_out_of_memory, _diverged, _crashed, _other):
        if outcome := choose(endings):
            return outcome
    return _measured([ending for ending in endings if isinstance(ending, Measured)])


def _out_of_memory(endings: Sequence[Outcome]) -> Outcome | None:
    """The rank that wanted most; what was left behind is the largest of all ranks."""
    found = [ending for ending in endings if isinstance(ending, OutOfMemory)]
    if not found:
        return None
    worst = max(found, key=lambda ending: ending.wanted_bytes or 0)
    if worst.costs is None:
        return worst
    return replace(worst, costs=replace(worst.costs, residual_bytes=_residual(endings)))


def _diverged(endings: Sequence[Outcome]) -> Outcome | None:
    return next((ending for ending in endings if isinstance(ending, Diverged)), None)


def _crashed(endings: Sequence[Outcome]) -> Outcome | None:
    found = [ending for ending in endings if isinstance(ending, Crashed)]
    return min(found, key=lambda ending: ending.cause == "collective", default=None)


def _other(endings: Sequence[Outcome]) -> Outcome | None:
    return next((ending for ending in endings if not isinstance(ending, Measured)), None)


def _measured(endings: Sequence[Measured]) -> Measured:
    """Times of rank 0, memory of the rank closest to its limit, the slowest clock's reasons."""
    first = endings[0]
    throttled = {reason for ending in endings for reason in ending.conditions.throttled}
    return replace(
        first,
        memory=max((ending.memory for ending in endings), key=lambda memory: memory.share),
        conditions=replace(first.conditions, throttled=tuple(sorted(throttled))),
        costs=replace(first.costs, residual_bytes=_residual(endings)),
    )


def _residual(endings: Sequence[Outcome]) -> int:
    kinds = (Measured, OutOfMemory, Diverged, Crashed)
    return max(
        (
            ending.costs.residual_bytes
            for ending in endings
            if isinstance(ending, kinds) and ending.costs is not None
        ),
        default=0,
    )


def crash_cause(error: BaseException, phase: str) -> CrashKind:
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
