"""The plain loop: what each plan must train, from the stock model and torch alone.

It takes one sample at a time, without padding, in one process; the loss is the mean over all
targets of the global batch. That of a function is the loss of its whole batch. SGD moves each
weight by its gradient, so that a wrong scale, weight or reduction of gradients shows; AdamW hides
it. So does clipping, which gives gradients of any scale one length. Therefore two steps are
compared, of which only the longer one is clipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils import get_total_norm

from search_spaces.spec.schema import SweepSpec, Task
from tests.workers.parity.architectures import GLOBAL_BATCH, STEPS
from tests.workers.parity.layouts import ONE_BY_ONE, plan_of
from workers.data.batches import BatchSource, FunctionSource, batch_source
from workers.data.collate import IGNORED
from workers.models.deferred_init import original_name
from workers.models.load import build_whole
from workers.prepare import prepare

# Norm of the first change: small weights keep three digits of it, and the second step still begins
# near the first one's weights
_LENGTH = 0.03
FP16_SCALE = 2.0**12  # of the loss; with the first one of torch's scaler, some of these overflow
FIRST_STEPS = (-1, 0)  # of trials and of exported scripts: the longest samples first
OptimizerOf = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Changes of the stock model's weights by two steps of SGD.

    Attributes:
        changes: By the name of the weight.
        rate: Learning rate.
        clip: Norm to which gradients are clipped, between those of the two steps.
        aliases: The name that `changes` has, by each name of a tied weight.
    """

    changes: Mapping[str, torch.Tensor]
    rate: float
    clip: float
    aliases: Mapping[str, str]

    def change_of(self, found: str) -> tuple[str, torch.Tensor]:
        """Returns the name and the expected change of a weight, by its name in a split model."""
        whole = f".{original_name(found)}"  # after the number of a stage, maybe
        names = [name for name in self.aliases if whole.endswith(f".{name}")]
        assert names, f"{found} is no weight of the model"
        name = self.aliases[max(names, key=len)]
        return name, self.changes[name]

    def largest_difference(self, ranks: Sequence[Mapping[str, torch.Tensor]]) -> float:
        """Returns the largest difference of any weight's change, as a share of the largest change.

        Raises:
            AssertionError: If a weight of the model is on no rank.
        """
        largest = max(change.abs().max().item() for change in self.changes.values())
        worst, seen = 0.0, set[str]()
        for moved in ranks:
            for found, change in moved.items():
                name, expected = self.change_of(found)
                seen.add(name)
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
    model = build_whole(spec.model, spec.train, attention="eager")
    module, source = model.module.train(), batch_source(model, spec)
    before = {name: weight.detach().clone() for name, weight in module.named_parameters()}
    is_clipped = set()
    for number in steps:
        _accumulate(module, source, spec, number, in_fp16=in_fp16)
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
    return Reference(changes=changes, rate=rate, clip=clip, aliases=aliases)


def _norms(spec: SweepSpec, steps: tuple[int, int]) -> tuple[float, float]:
    """Returns the norms of both gradients; the second after an unclipped step."""
    model = build_whole(spec.model, spec.train, attention="eager")
    module, source = model.module.train(), batch_source(model, spec)
    norms = []
    for number in steps:
        _accumulate(module, source, spec, number)
        trained = [weight for weight in module.parameters() if weight.grad is not None]
        norms.append(get_total_norm(weight.grad for weight in trained if weight.grad is not None))
        for weight in trained:
            assert weight.grad is not None
            weight.data -= weight.grad * (_LENGTH / norms[0])
            weight.grad = None
    return norms[0].item(), norms[1].item()


def reference_losses(spec: SweepSpec, optimizer_of: OptimizerOf | None = None) -> list[float]:
    """Returns the losses of steps of an optimizer (AdamW), after a first unmeasured step."""
    model = build_whole(spec.model, spec.train, attention="eager")
    module, source = model.module.train(), batch_source(model, spec)
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
        losses.append(_accumulate(module, source, spec, number))
        if spec.train.grad_clip is not None:
            torch.nn.utils.clip_grad_norm_(weights, spec.train.grad_clip)
        optimizer.step()
        optimizer.zero_grad()
    return losses[1:]


def _accumulate(
    module: nn.Module, source: BatchSource, spec: SweepSpec, number: int, *, in_fp16: bool = False
) -> float:
    """Adds the gradient of the mean loss over all targets of a step; returns the loss."""
    knobs = ONE_BY_ONE
    if isinstance(source, FunctionSource):  # only its whole batch says what its loss is
        knobs = {**ONE_BY_ONE, "micro_batch": GLOBAL_BATCH}
    facts = prepare(spec)
    step = source.step(plan_of(knobs, facts), 0, number)
    counts = [_targets(batch.inputs, facts.task) for batch in step.batches]
    scale, loss = FP16_SCALE if in_fp16 else 1.0, 0.0
    for batch, count in zip(step.batches, counts, strict=True):
        with torch.autocast("cpu", torch.float16, enabled=in_fp16):
            output = module(**batch.inputs)
        key = 0 if isinstance(output, tuple) else "loss"
        mean = output if isinstance(output, torch.Tensor) else output[key]
        part = mean * count / sum(counts)
        (part * scale).backward()
        loss += part.item()
    for weight in module.parameters():
        if weight.grad is not None:
            weight.grad /= scale
    return loss


def _targets(inputs: Mapping[str, torch.Tensor], task: Task | None) -> int:
    """Counts the labels behind the mean loss of a sample; one without labels is one target."""
    labels = inputs.get("labels", torch.zeros(1))
    if labels.dim() < 2:
        return len(labels)
    return int((labels[:, task == "causal-lm" :] != IGNORED).sum())
