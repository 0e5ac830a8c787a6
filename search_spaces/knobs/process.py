"""Knobs of a plan. Processes: loaders of batches, the memory allocator."""

from __future__ import annotations

from search_spaces.knobs.knob import Knob

PROCESS = (
    Knob(
        name="loader_workers",
        trades="batches prepared in parallel with training, against CPU cores and host memory"
        " (counted neither in the peak nor against the limit)",
        does="forks that many processes per rank to make batches, including those of a user's"
        " batch maker; batches pass through /dev/shm, which needs room for them; 0: the rank"
        " makes them itself",
        forecast=False,
        label="loaders {}",
    ),
    Knob(
        name="loader_pin_memory",
        trades="faster copies of batches, but host memory that cannot be swapped out",
        does="page-locks batches before they are copied to the GPU",
        forecast=False,
        label="pinned batches",
    ),
    Knob(
        name="allocator",
        trades="less fragmentation and less retained memory, against more work in the allocator",
        does="sets environment variables that are read when a process starts: a plan with another"
        " value gets a new worker group",
        forecast=False,
        set_in="process",
        label="{}",
    ),
)
