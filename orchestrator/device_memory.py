"""What is in use of the memory of this machine's GPUs, by whomever; asked of their driver.

When a process is gone the driver may take seconds to have its memory back. What starts on the
device meanwhile would run out of memory that its own plan never had.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping

from search_spaces.spec.schema import GIB
from workers.nvml import nvml

_POLL_SECONDS = 0.2
_SLACK_BYTES = 256 * 2**20  # what others on the device may take meanwhile, as a display


def device_use() -> dict[str, int]:
    """Bytes in use of each GPU of this machine, by its UUID, in the driver's order."""
    with nvml() as library:
        if library is None:
            return {}
        used = dict[str, int]()
        with contextlib.suppress(library.NVMLError):  # what it does not tell is not waited for
            for index in range(library.nvmlDeviceGetCount()):
                handle = library.nvmlDeviceGetHandleByIndex(index)
                uuid = library.nvmlDeviceGetUUID(handle)
                used[str(uuid)] = int(library.nvmlDeviceGetMemoryInfo(handle).used)
        return used


def visible_device_use(read: Callable[[], Mapping[str, int]] = device_use) -> dict[str, int]:
    """Of the GPUs alone that this process may use, by `CUDA_VISIBLE_DEVICES`.

    Ray sets that to the devices that all ranks of a group have on the node, as indices or UUIDs.
    """
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names == "":
        return {}
    used = dict(read())
    if names is None:
        return used
    order = list(used)
    chosen = [
        order[int(name)] if name.isdigit() and int(name) < len(order) else name
        for name in map(str.strip, names.split(","))
    ]
    return {uuid: used[uuid] for uuid in chosen if uuid in used}


def unreleased(
    before: Mapping[str, int],
    seconds: float,
    read: Callable[[], Mapping[str, int]] = device_use,
) -> tuple[str, ...]:
    """Waits until no more is in use than before a group; what is held even so, a sentence each.

    Args:
        before: Bytes in use when the group began, by the GPU's UUID.
        seconds: Longest wait.
        read: What is in use now.
    """
    until = time.monotonic() + seconds
    while held := {
        uuid: now - before[uuid]
        for uuid, now in (read() if before else {}).items()
        if uuid in before and now - before[uuid] > _SLACK_BYTES
    }:
        if time.monotonic() >= until:
            break
        time.sleep(_POLL_SECONDS)
    return tuple(
        f"{more / GIB:.1f} GiB of {uuid} did not come back in {seconds:.0f} s after its processes"
        " had ended: nvidia-smi says who holds them"
        for uuid, more in held.items()
    )
