"""How gradients travel."""

from __future__ import annotations

from search_spaces.plan import Plan
from search_spaces.rules.base import Rule, Surroundings


def compression_fits_device(plan: Plan, around: Surroundings) -> str | None:
    """DDP takes its bf16 hook for NCCL alone.

    Source:
        torch.nn.parallel.distributed: `_check_comm_hook`.
    """
    if plan.compression != "bf16" or around.cluster.device != "cpu":
        return None
    return "compression bf16 is for ranks that talk over NCCL, the ranks are CPUs"


RULES: tuple[Rule, ...] = (compression_fits_device,)
