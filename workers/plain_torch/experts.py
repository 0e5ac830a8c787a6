"""Expert parallelism: data ranks divide the experts of each layer, and send them their tokens."""

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

DISPATCH = "ep_dispatch_experts"  # transformers' style of a layer that tokens are sent to


def expert_styles(module: nn.Module) -> dict[str, str]:
    """Returns transformers' style of expert parallelism of each module and weight that has one."""
    plan = getattr(module, "ep_plan", None)
    styles: dict[str, str] = module._expand_parallel_plan(plan) if plan else {}  # type: ignore[operator]
    return styles


def divide_experts(
    module: nn.Module, ranks: DeviceMesh, alone: DeviceMesh, exchange: str = "all_to_all"
) -> list[nn.Module]:
    """Leaves each rank its experts of each layer, in place; returns the layers.

    Args:
        module: A model of transformers; the experts of its layers have a plan there.
        ranks: The ranks that divide them, each with samples of its own.
        alone: A mesh of this rank alone.
        exchange: Name of the `EPImplementation` that brings tokens to experts.
    """
    from transformers.distributed.expert_parallel import apply_expert_parallelism

    styles = expert_styles(module)
    apply_expert_parallelism(module, ranks, alone, styles, exchange)
    return [part for name, part in module.named_modules() if styles.get(name) == DISPATCH]
