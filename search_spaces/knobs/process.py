"""Knobs of a plan. Processes: loaders of batches, the memory allocator."""

from search_spaces.knobs.knob import Knob

PROCESS = (
    Knob(name="loader_workers", forecast=False, label="loaders {}"),
    Knob(name="loader_pin_memory", forecast=False, label="pinned batches"),
    Knob(name="allocator", forecast=False, label="{}"),
)
