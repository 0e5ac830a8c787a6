"""Pipeline stages as torch's schedules call them, and weights tied between two stages."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from search_spaces.settings.render import TorchSettings
from workers.engines.gradient_average import own_gradients
from workers.models.stage_placeholders import HiddenStateChannel
from workers.plain_torch.data_parallel import autocast, sync_shards
from workers.plain_torch.loss import loss_of
from workers.plain_torch.update import Update


class StageModule(nn.Module):
    """Runs forward passes of a stage, for micro-batches that every stage looks up by number.

    It also controls when the wrapper of the stage reduces gradients. By default torch's pipelining
    keeps FSDP2's weights and gradients unsharded from a stage's first backward to its last. Here
    both are as `settings` require.
    """

    def __init__(
        self,
        module: nn.Module,
        passage: HiddenStateChannel,
        settings: TorchSettings,
        device: torch.device,
        *,
        is_last: bool,
    ) -> None:
        super().__init__()
        self.module = module
        self.is_last = is_last
        self.parts: list[torch.Tensor] = []  # of the step's loss
        self._passage, self._settings, self._device = passage, settings, device
        self._inputs: Sequence[dict[str, torch.Tensor]] = ()
        self._weights: Sequence[float] = ()
        self._update: Update | None = None
        self._sent_as = torch.float32

    def load(
        self,
        inputs: Sequence[dict[str, torch.Tensor]],
        weights: Sequence[float],
        update: Update,
        sent_as: torch.dtype,
    ) -> None:
        """Stores the micro-batches of a step.

        Args:
            inputs: Keyword arguments of the model, on its device.
            weights: Weight of each micro-batch's mean loss in backward.
            update: Scales the loss.
            sent_as: Type of the hidden states between stages.
        """
        self._inputs, self._weights = inputs, weights
        self._update, self._sent_as = update, sent_as
        self.parts = []

    def unload(self) -> None:
        """Drops the micro-batches."""
        self._inputs, self._update = (), None

    def forward(self, *received: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        """Returns hidden states for the next stage; in the last stage the weighted loss.

        Args:
            received: Hidden states of the previous stage; nothing in the first.
            number: Index of the micro-batch, in a tensor of one element on the CPU.
        """
        index = int(number)
        self._passage.enter(received[0] if received else None)
        with self._without_sync(), autocast(self._settings.autocast, self._device):
            output: object = self.module(**self._inputs[index])
        if self.is_last:
            assert self._update is not None
            part = loss_of(output) * self._weights[index]
            self.parts.append(part.detach())
            result = self._update.scale(part)
        else:
            assert isinstance(output, torch.Tensor)
            result = output.to(self._sent_as)
        if result.requires_grad:
            result.register_hook(partial(self._before_backward, index))
        return result

    def _without_sync(self) -> contextlib.AbstractContextManager[object]:
        # DDP prepares for a reduction in forward, but other backward passes may come first
        if isinstance(self.module, DistributedDataParallel):
            return self.module.no_sync()
        return contextlib.nullcontext()

    def _before_backward(self, index: int, _: torch.Tensor) -> None:
        is_last = index == len(self._inputs) - 1  # every schedule keeps the order of micro-batches
        if isinstance(self.module, DistributedDataParallel) and is_last:
            # not part of DDP's interface, but torch's own pipelining does the same
            self.module.reducer.prepare_for_backward([])
        if isinstance(self.module, FSDPModule):
            self.module.set_is_last_backward(is_last)
        keep = self._settings.gathered_between_passes
        sync_shards(self.module, last=is_last, keep_gathered=keep)


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedWeights:
    """Weights that the first and the last stage both have, kept equal by equal gradients."""

    weights: tuple[nn.Parameter, ...]  # of this rank, in the same order on both ranks
    peer: int  # the other rank's index in `group`
    group: dist.ProcessGroup
    device: torch.device  # device of the communication; gradients may lie in host memory

    @torch.no_grad()
    def add_up(self) -> None:
        """Sets both copies' gradients to their sum; both ranks call it together."""
        for own in own_gradients(self.weights):
            sent = own.to(self.device, copy=True)
            other = torch.empty_like(sent)
            works = dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, sent, group=self.group, group_peer=self.peer),
                    dist.P2POp(dist.irecv, other, group=self.group, group_peer=self.peer),
                ]
            )
            for work in works:
                work.wait()
            own.add_(other.to(own.device))
