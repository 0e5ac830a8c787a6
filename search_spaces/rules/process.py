"""The process around the training: its allocator and its loader."""

from __future__ import annotations

from search_spaces.plan import Plan
from search_spaces.rules.base import Rule, Surroundings

_OF_DEVICE = {"expandable_segments": "cuda", "max_split": "cuda", "mmap": "cpu"}


def allocator_fits_device(plan: Plan, around: Surroundings) -> str | None:
    """Settings of torch's CUDA allocator say nothing to malloc, and the other way round."""
    needed, device = _OF_DEVICE.get(plan.allocator), around.cluster.device
    if needed is None or device in (needed, "auto"):
        return None
    return f"allocator {plan.allocator} is for {needed}, the ranks are on {device}"


def loader_pinning_needs_cuda(plan: Plan, around: Surroundings) -> str | None:
    """Page-locked memory is what a GPU copies from."""
    if not plan.loader_pin_memory or around.cluster.device != "cpu":
        return None
    return "loader_pin_memory is for copies to a GPU, the ranks are CPUs"


RULES: tuple[Rule, ...] = (allocator_fits_device, loader_pinning_needs_cuda)
