"""Merges the outcomes of all ranks into one: the root cause of a failure decides.

Pure functions of values; `workers.process_groups` has the exchange between ranks.
"""

import errno
import site
import sysconfig
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from search_spaces.errors import exception_chain
from search_spaces.trial import Crashed, CrashKind, Measured, NoTraining, Outcome, OutOfMemory

# gloo raises plain RuntimeErrors; only their texts tell them apart
_COLLECTIVE = ("gloo/transport", "Connection closed by peer", "Connection reset by peer")
_DEVICE = ("CUDA error", "CUBLAS_STATUS", "CUDNN_STATUS")
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_ROOT = Path(__file__).resolve().parents[1]
_LIBRARIES = tuple(
    str(Path(each).resolve())
    for each in (sysconfig.get_path("stdlib"), *site.getsitepackages(), site.getusersitepackages())
)
_PLIMSOLL = tuple(str(_ROOT / name) for name in ("orchestrator", "search_spaces", "workers"))


def merge_outcomes(endings: Sequence[Outcome]) -> Outcome:
    """Returns the outcome of a trial from the outcomes of its ranks, in the order of ranks.

    When one rank fails, its peers fail too, in the collective in which they wait for it. So
    causes rank above consequences: out of memory, then a loss that is not finite, then a crash
    of a rank itself, then a broken collective.
    """
    crashes = [ending for ending in endings if isinstance(ending, Crashed)]
    return (
        _out_of_memory(endings)
        or next((ending for ending in endings if isinstance(ending, NoTraining)), None)
        or min(crashes, key=lambda ending: ending.cause == "collective", default=None)
        or next((ending for ending in endings if not isinstance(ending, Measured)), None)
        or _measured([ending for ending in endings if isinstance(ending, Measured)])
    )


def _out_of_memory(endings: Sequence[Outcome]) -> Outcome | None:
    """The outcome of the rank that wanted most, with the largest residual of all ranks."""
    failures = [ending for ending in endings if isinstance(ending, OutOfMemory)]
    if not failures:
        return None
    worst = max(failures, key=lambda ending: ending.wanted_bytes or 0)
    if worst.costs is None:
        return worst
    return replace(worst, costs=replace(worst.costs, residual_bytes=_residual(endings)))


def _measured(endings: Sequence[Measured]) -> Measured:
    """Times of rank 0, memory of the rank closest to its limit, throttle reasons of all ranks."""
    first = endings[0]
    throttled = {reason for ending in endings for reason in ending.conditions.throttled}
    return replace(
        first,
        memory=max((ending.memory for ending in endings), key=lambda memory: memory.share),
        conditions=replace(first.conditions, throttled=tuple(sorted(throttled))),
        costs=replace(first.costs, residual_bytes=_residual(endings)),
    )


def _residual(endings: Sequence[Outcome]) -> int:
    costs = (getattr(ending, "costs", None) for ending in endings)  # some kinds have none
    return max((each.residual_bytes for each in costs if each is not None), default=0)


def crash_cause(error: BaseException, phase: str) -> CrashKind:
    """Classifies the exception of a rank.

    - "disk_full": the file system has no space left, or the quota is used up.
    - "collective": a peer is gone, or a collective timed out.
    - "device_error": the device is in a state that only new processes can leave.
    - "layout": the model could not be split or wrapped, and no user code was running.
    - "exception": anything else, such as an error in user code.

    Args:
        error: The exception; its causes and contexts count too.
        phase: The phase in which it was raised: "build", "forward", ...
    """
    chain = list(exception_chain(error))
    if any(isinstance(each, OSError) and each.errno in _DISK_FULL for each in chain):
        return "disk_full"
    words = any(text in str(each) for each in chain for text in _COLLECTIVE)
    if words or any(isinstance(each, dist.DistError) for each in chain):
        return "collective"
    if any(_is_device_error(each) for each in chain):
        return "device_error"
    return "layout" if phase == "build" and not any(map(_ran_user_code, chain)) else "exception"


def _is_device_error(error: BaseException) -> bool:
    kind = getattr(torch, "AcceleratorError", ())
    return isinstance(error, kind) or any(text in str(error) for text in _DEVICE)


def _ran_user_code(error: BaseException) -> bool:
    traceback = error.__traceback__
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if name[:1] != "<" and not str(Path(name).resolve()).startswith((*_PLIMSOLL, *_LIBRARIES)):
            return True
        traceback = traceback.tb_next
    return False
