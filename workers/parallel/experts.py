"""Expert ranks of a trial: their layers, and the tokens that each rank gets."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from transformers.distributed.expert_parallel import AllToAllEP, EPImplementationInterface

from workers.plain_torch.experts import divide_experts
from workers.process_groups import Mesh

_COUNTING = "all_to_all_counting"
_COUNTS = "routed_tokens"  # attribute of a layer


class _CountingAllToAll(AllToAllEP):  # type: ignore[misc]  # transformers has no types here
    """transformers' all-to-all, which also adds up the tokens that a rank sends and gets."""

    def __init__(self, experts: nn.Module, ep_mesh: DeviceMesh, tp_mesh: DeviceMesh) -> None:
        super().__init__(experts, ep_mesh, tp_mesh)
        self.tokens = {"sent": 0, "received": 0}
        setattr(experts, _COUNTS, self.tokens)

    def _combine_tokens(self, expert_output: torch.Tensor, state: object) -> torch.Tensor:
        self.tokens["sent"] += sum(state.send_sizes)  # type: ignore[attr-defined]
        self.tokens["received"] += sum(state.recv_sizes)  # type: ignore[attr-defined]
        combined: torch.Tensor = super()._combine_tokens(expert_output, state)
        return combined


def split_experts(module: nn.Module, mesh: Mesh) -> tuple[tuple[nn.Module, DeviceMesh], ...]:
    """Divides the experts, in place; returns the layers with the ranks that have the same ones."""
    assert mesh.experts is not None
    EPImplementationInterface.register(_COUNTING, _CountingAllToAll)
    ranks, copies = mesh.experts["together"], mesh.experts["apart"]
    layers = divide_experts(module, ranks, mesh.devices["tensor"], _COUNTING)
    return tuple((layer, copies) for layer in layers)


def expert_skew(module: nn.Module, mesh: Mesh, device: torch.device) -> float:
    """Returns the tokens of the busiest rank over the mean, averaged over the layers of experts.

    All ranks call it together, after some steps.
    """
    counts = [getattr(part, _COUNTS) for part in module.modules() if hasattr(part, _COUNTS)]
    shares = [tokens["received"] / max(tokens["sent"], 1) for tokens in counts]
    most = torch.tensor(shares, dtype=torch.float64, device=device)
    dist.all_reduce(most, dist.ReduceOp.MAX, group=mesh.group)
    return float(most.mean())
