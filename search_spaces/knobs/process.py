"""Knobs of a plan. Processes: loaders of batches, the memory allocator."""

from search_spaces.knobs.knob import Knob

PROCESS = (
    Knob(
        name="loader_workers",
        trades="batches prepared during training, against CPU cores and host memory outside the"
        " limit",
        does="forks processes that make batches and pass them through /dev/shm; 0: the rank does",
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
        trades="less fragmentation and retained memory, against more work in the allocator",
        does="sets environment variables, which needs a new worker group",
        forecast=False,
        label="{}",
    ),
)
