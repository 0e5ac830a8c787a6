"""The plain loop: what each plan must train, from the stock model and torch alone.

It takes one sample at a time, without padding, in one process; the loss is the mean over all
targets of the global batch. A function is called by its name, without code of `workers`; its loss
is that of the whole batch, or the mean over micro-batches of `train.micro_batch`. SGD moves each
weight by its gradient, so that a wrong scale, weight or reduction of gradients shows; AdamW hides
it. So does clipping, which gives gradients of any scale one length. Therefore two steps are
compared, of which only the longer one is clipped.
"""

import importlib
import inspect
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import get_total_norm

from search_spaces.specification.schema import SweepSpec, Task
from tests.workers.parity.architectures import GLOBAL_BATCH, STEPS
from tests.workers.parity.layouts import ONE_BY_ONE, plan_of
from workers.data.batches import FunctionSource
from workers.data.collate import IGNORED
from workers.models.built import batch_source
from workers.models.deferred_init import original_name
from workers.models.load import build_whole
from workers.prepare import prepare

# Norm of the first change: small weights keep three digits of it, and the second step still begins
# near the first one's weights
_LENGTH = 0.03
FP16_SCALE = 2.0**12  # of the loss; with the first one of torch's scaler, some of these overflow
FIRST_STEPS = (-1, 0)  # of trials and of exported scripts: the longest samples first
FUNCTION_STEPS = (0, 1)  # whose data has no longest sample
Parts = Iterator[tuple[Mapping[str, Any], float]]
OptimizerOf = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Changes of the stock model's weights by two steps of SGD.

    Attributes:
        changes: By the name of the weight.
        rate: Learning rate.
        clip: Norm to which gradients are clipped, between those of the two steps.
        steps: Their numbers.
        losses: Of both steps.
        aliases: The name that `changes` has, by each name of a tied weight.
    """

    changes: Mapping[str, torch.Tensor]
    rate: float
    clip: float
    steps: tuple[int, int]
    losses: tuple[float, ...]
    aliases: Mapping[str, str]

    def change_of(self, found: str) -> tuple[str, torch.Tensor]:
        """Returns the name and the expected change of a weight, by its name in a split model."""
        whole = f".{original_name(found)}"  # after the number of a stage, maybe
        names = [name for name in self.aliases if whole.endswith(f".{original_name(name)}")]
        assert names, f"{found} is no weight of the model"
        name = self.aliases[max(names, key=len)]
        return name, self.changes[name]

    def loss_difference(self, ranks: Sequence[Sequence[float]]) -> float:
        """Returns the largest relative difference of losses, of which each rank has a part."""
        losses = map(sum, zip(*ranks, strict=True))
        pairs = zip(losses, self.losses, strict=True)
        return max(abs(mine - theirs) / (abs(theirs) or 1.0) for mine, theirs in pairs)

    def largest_difference(self, ranks: Sequence[Mapping[str, torch.Tensor]]) -> float:
        """Returns the largest difference of any weight's change, as a share of the largest change.

        Raises:
            AssertionError: If a weight of the model is on no rank.
        """
        largest = max(
            change.norm(torch.inf).item() for change in self.changes.values() if change.numel()
        )
        worst, seen = 0.0, set[str]()
        for moved in ranks:
            for found, change in moved.items():
                name, expected = self.change_of(found)
                seen.add(name)
                if change.numel():
                    worst = max(worst, (change - expected).abs().max().item() / largest)
        assert seen == self.changes.keys(), "not every weight is on a rank"
        return worst


def reference(
    spec: SweepSpec, steps: tuple[int, int] = FIRST_STEPS, *, in_fp16: bool = False
) -> Reference:
    """Takes two steps of SGD, by their numbers.

    Args:
        spec: Of the model and its data.
        steps: Numbers of the steps.
        in_fp16: Activations are in fp16, whose rounding decides which experts a token takes.
    """
    first, second = _norms(spec, steps)
    rate, clip = _LENGTH / first, math.sqrt(first * second)
    module, parts_of = _loop(spec)
    before = {name: weight.detach().clone() for name, weight in module.named_parameters()}
    is_clipped, losses = set(), list[float]()
    for number in steps:
        losses.append(_accumulate(module, parts_of(number), in_fp16=in_fp16))
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
        is_clipped.add(bool(norm > clip))
        for weight in module.parameters():
            if weight.grad is not None:
                weight.data -= rate * weight.grad
                weight.grad = None
    assert is_clipped == {True, False}, "the two steps do not differ in what is clipped"
    # with the rounding of weights, as whoever reads them has it
    changes = {name: before[name] - weight.detach() for name, weight in module.named_parameters()}
    by_weight = {id(weight): name for name, weight in module.named_parameters()}
    every_name = module.named_parameters(remove_duplicate=False)
    aliases = {name: by_weight[id(weight)] for name, weight in every_name}
    return Reference(
        changes=changes, rate=rate, clip=clip, steps=steps, losses=tuple(losses), aliases=aliases
    )


def _norms(spec: SweepSpec, steps: tuple[int, int]) -> tuple[float, float]:
    """Returns the norms of both gradients; the second after an unclipped step."""
    module, parts_of = _loop(spec)
    norms = []
    for number in steps:
        _accumulate(module, parts_of(number))
        trained = [weight for weight in module.parameters() if weight.grad is not None]
        norms.append(get_total_norm(weight.grad for weight in trained if weight.grad is not None))
        for weight in trained:
            assert weight.grad is not None
            weight.data -= weight.grad * (_LENGTH / norms[0])
            weight.grad = None
    return norms[0].item(), norms[1].item()


def reference_losses(spec: SweepSpec, optimizer_of: OptimizerOf | None = None) -> list[float]:
    """Returns the losses of steps of an optimizer (AdamW), after a first unmeasured step."""
    module, parts_of = _loop(spec)
    weights = list(module.parameters())
    optimizer = (
        optimizer_of(weights)
        if optimizer_of is not None
        else torch.optim.AdamW(
            weights, lr=spec.train.learning_rate, weight_decay=spec.train.weight_decay
        )
    )
    losses = []
    for number in range(-1, STEPS):
        losses.append(_accumulate(module, parts_of(number)))
        if spec.train.grad_clip is not None:
            torch.nn.utils.clip_grad_norm_(weights, spec.train.grad_clip)
        optimizer.step()
        optimizer.zero_grad()
    return losses[1:]


def _accumulate(module: nn.Module, parts: Parts, *, in_fp16: bool = False) -> float:
    """Adds the gradient of the mean loss of a step; returns the loss."""
    scale, loss = FP16_SCALE if in_fp16 else 1.0, 0.0
    for inputs, share in parts:
        with torch.autocast("cpu", torch.float16, enabled=in_fp16):
            part = _loss(module(**inputs)) * share
        (part * scale).backward()
        loss += part.item()
    for weight in module.parameters():
        if weight.grad is not None:
            weight.grad /= scale
    return loss


def _loss(output: Any) -> torch.Tensor:
    """Returns the loss, or of a tuple the only scalar."""
    found = getattr(output, "loss", output)
    if isinstance(found, Mapping):
        return found["loss"].reshape(())
    if not isinstance(found, torch.Tensor):
        (found,) = (one for one in output if isinstance(one, torch.Tensor) and not one.dim())
    return found.reshape(())


def _loop(spec: SweepSpec) -> tuple[nn.Module, Callable[[int], Parts]]:
    """Returns a module, and the parts of a step by its number: inputs, and shares of the loss."""
    if ":" in spec.model.name:
        return _function_loop(spec)
    model = build_whole(spec.model, spec.train, attention="eager")
    source, facts = batch_source(model, spec), prepare(spec)
    # the whole batch alone says what the loss of a model with batches of its own is
    own = {"micro_batch": GLOBAL_BATCH} if isinstance(source, FunctionSource) else {}
    plan = plan_of({**ONE_BY_ONE, **own}, facts)

    def parts(number: int) -> Parts:
        batches = source.step(plan, 0, number).batches
        counts = [_targets(batch.inputs, facts.task) for batch in batches]
        for batch, count in zip(batches, counts, strict=True):
            yield batch.inputs, count / sum(counts)

    return model.module.train(), parts


def _function_loop(spec: SweepSpec) -> tuple[nn.Module, Callable[[int], Parts]]:
    place, name = spec.model.name.split(":")
    _seed(spec.train.seed)
    module, batch, *ends = getattr(importlib.import_module(place), name)(**spec.model.config)
    size = spec.train.micro_batch or GLOBAL_BATCH

    def parts(number: int) -> Parts:
        start = max(number, 0) * GLOBAL_BATCH
        for first in range(start, start + GLOBAL_BATCH, size):
            numbers = range(first, first + size)
            inputs = _as_tensors(batch(tuple(one % ends[0] if ends else one for one in numbers)))
            if "targets" not in inspect.signature(module.forward).parameters:
                inputs.pop("targets", None)  # the weight of micro-batches
            _seed(first)
            yield inputs, size / GLOBAL_BATCH

    return module.float().train(), parts


def _seed(number: int) -> None:
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(number)


def _as_tensors(value: Any) -> Any:
    """Returns inputs with arrays and lists of numbers as tensors, and all fractions in fp32."""
    if isinstance(value, Mapping):
        return {key: _as_tensors(one) for key, one in value.items()}
    if isinstance(value, np.ndarray | list) and np.asarray(value).dtype.kind in "biuf":
        value = torch.as_tensor(np.asarray(value))
    is_tensor = isinstance(value, torch.Tensor)
    return value.float() if is_tensor and value.is_floating_point() else value


def _targets(inputs: Mapping[str, torch.Tensor], task: Task | None) -> int:
    """Counts the labels behind the mean loss of a sample; one without labels is one target."""
    labels = inputs.get("labels", torch.zeros(1))
    if labels.dim() < 2:
        return len(labels)
    return int((labels[:, task == "causal-lm" :] != IGNORED).sum())
