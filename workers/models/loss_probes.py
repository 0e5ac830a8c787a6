"""Probes of the loss: what of a plan changes it, for this class of models.

Plans are lossless only if padding, other samples of a micro-batch and the implementation of
attention leave a sample's loss alone. Most models of transformers keep this, some do not: FNet
mixes padding in, dynamic RoPE depends on the longest row, an auxiliary loss of experts is no mean
over samples. The probes run on a small model of the same class, since a list of architectures
would age with transformers.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from search_spaces.facts import SAME_OUTPUTS, SAMPLES, Count, Fit, StepFindings, TargetRule
from search_spaces.plan import Attention
from search_spaces.specification.schema import Task
from workers.data.user_batches import SampleNumbers
from workers.models.built import seeded
from workers.models.small_model import (
    VOCABULARY,
    random_tokens,
    small_fields_of,
    small_model,
    task_inputs,
    tolerated,
)
from workers.models.stack import find_blocks
from workers.models.step_probe import probe_step
from workers.plain_torch.blocks import tile_mlps
from workers.plain_torch.head_loss import replace_loss
from workers.plain_torch.loss import loss_of

_SHORT, _LONG = 6, 12  # tokens of a sample, and of a longer one
_TILES = 3
_SWITCH = 8  # tokens after which rotary positions that depend on the length change
_LENGTHS = (5, 12)  # tokens of the samples in a step
_LABELS = TargetRule(count=Count.LABELS, key="labels")
_RULES: dict[Task, TargetRule] = {  # as `workers.data.collate` counts
    "causal-lm": TargetRule(count=Count.SHIFTED_LABELS, key="labels"),
    "masked-lm": _LABELS,
    "seq2seq": _LABELS,
    "sequence-classification": SAMPLES,
}
_MANY_LABELS = 1000  # of other micro-batches: a mean over the batch's own ignores them


@dataclass(frozen=True, slots=True, kw_only=True)
class LossFindings:
    """Findings of the probes: shares of the largest logit or of the loss, None if one cannot run.

    Attributes:
        padding: How much outputs for a sample change beside a longer one.
        attentions: How much outputs differ from those of the first attention, for each other one.
        step: Findings of passes in training mode; the loss should be the mean of `rule`.
        loss_refusal: Reason if the head cannot compute the loss: see `replace_loss`.
        tile_refusal: Reason if MLPs cannot compute tiles: see `tile_mlps`.
        rule: What Plimsoll's own batches are weighted by.
    """

    rule: TargetRule
    padding: float | None = None
    attentions: tuple[tuple[Attention, float], ...] = ()
    step: StepFindings | None = None
    loss_refusal: str | None = None
    tile_refusal: str | None = None

    @property
    def batch(self) -> float | None:
        """Difference of the loss of a batch from the weighted mean of its parts, as a share."""
        if self.step is None or self.step.not_probed:
            return None
        # what padding changes is a finding of its own
        fits = self.step.nearest is None or self.step.fit is Fit.PADDING
        is_mean = fits and self.rule in self.step.mean_over
        return 0.0 if is_mean else self.step.nearest_error or 1.0

    @property
    def shifts_labels(self) -> bool:
        """False if a causal model's loss at a token is of that token itself."""
        fits = () if self.step is None or self.step.nearest else self.step.mean_over
        return self.rule.count is not Count.SHIFTED_LABELS or fits[:1] != (_LABELS,)


def probe_loss(module: Any, task: Task, attentions: tuple[Attention, ...]) -> LossFindings:
    """Probes a small model of a module's class; one that cannot run finds nothing.

    Args:
        module: A model of transformers.
        task: What it is trained for.
        attentions: Implementations to compare; those that run on CUDA alone are left out.
    """
    model_class, fields = type(module), small_fields_of(module, task)
    first, *others = [name for name in attentions if not name.startswith("flash")] or ["eager"]
    rule, name = _RULES[task], model_class.__name__
    found: dict[str, Any] = {"rule": rule}
    found["loss_refusal"] = _loss_refusal(module, fields, task, first)
    found["tile_refusal"] = _tile_refusal(module, fields, task, first)
    with tolerated(name):
        short_rope = small_model(model_class, _with_early_switch(fields), first)
        found["padding"] = _padding_difference(short_rope, task)
    with tolerated(name):
        model = small_model(model_class, fields, first)
        found["step"] = probe_step(model, partial(_batch, task), rule, gradients=False)
    with tolerated(name):
        found["attentions"] = tuple(
            (other, _attention_difference(model_class, fields, task, (first, other)))
            for other in others
        )
    return LossFindings(**found)


def _loss_refusal(module: Any, fields: dict[str, Any], task: Task, attention: str) -> str | None:
    """Returns why the head cannot compute the loss, by the loss and gradients of a small model.

    Its head's outputs are made large, where a model that caps or clips them shows it.
    """
    name, model_class = type(module).__name__, type(module)
    if type(module.get_output_embeddings()) is not nn.Linear:
        return f"{name} has no head that is one linear layer without adapters"
    differences: list[float] = []
    with tolerated(name), torch.enable_grad():
        model: Any = small_model(model_class, fields, attention)
        inputs = task_inputs(task, random_tokens(2, _LONG), [_SHORT, _LONG])
        outputs: list[torch.Tensor] = []

        def enlarge(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
            outputs.append(1e3 * output.detach())
            return outputs[0]

        hook = model.get_output_embeddings().register_forward_hook(enlarge)
        logits = model(**inputs).logits.detach()
        hook.remove()
        expected = _loss_and_gradients(model, inputs)
        replace_loss(model, "chunked", shifts=_RULES[task].count is Count.SHIFTED_LABELS)
        found = _loss_and_gradients(model, inputs)
        differences = [_apart(logits, outputs[0]), *map(_apart, found, expected)]
    if differences and max(differences) <= SAME_OUTPUTS:
        return None
    if not differences:
        return f"a small {name} does not train, so that the loss of its head cannot be compared"
    return f"the loss of {name} is another one than the mean cross entropy of its head's outputs"


def _tile_refusal(module: Any, fields: dict[str, Any], task: Task, attention: str) -> str | None:
    """Returns why MLPs cannot compute tiles, by the loss and gradients of a small model."""
    name = type(module).__name__
    differences: list[float] = []
    with tolerated(name), torch.enable_grad():
        model = small_model(type(module), fields, attention)
        inputs = task_inputs(task, random_tokens(2, _LONG), [_SHORT, _LONG])
        expected = _loss_and_gradients(model, inputs)
        if not tile_mlps(find_blocks(model), _TILES):
            return f"{name} has no MLP that is one module of its blocks"
        differences += map(_apart, _loss_and_gradients(model, inputs), expected)
    if differences and max(differences) <= SAME_OUTPUTS:
        return None
    return f"the MLPs of {name} do not compute tiles of a sequence as they do the whole"


def _loss_and_gradients(model: nn.Module, inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    loss = loss_of(model(**inputs))
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    parts = [one.flatten() for one in gradients if one is not None]
    return loss.detach()[None], torch.cat(parts)


def follows_label_count(module: Any, task: Task) -> bool:
    """Tells if the loss of a small model of the same class follows `num_items_in_batch`.

    A model that cannot be made small, or whose loss fails, does not.
    """
    model_class: Any = type(module)
    alone = counted = torch.zeros(())
    with tolerated(model_class.__name__):
        model = small_model(model_class, small_fields_of(module, task), "eager")
        inputs = task_inputs(task, random_tokens(1, _SHORT), [_SHORT])
        alone = model(**inputs).loss
        counted = model(**inputs, num_items_in_batch=_MANY_LABELS).loss
    return bool(counted < alone / 2)


def _with_early_switch(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns a configuration whose dynamic or longrope positions switch after `_SWITCH` tokens."""
    rope = fields.get("rope_parameters")
    if not isinstance(rope, dict) or rope.get("rope_type") not in ("dynamic", "longrope"):
        return fields
    original = "original_max_position_embeddings"  # of longrope, in both places
    early = {name: _SWITCH for name in (original, "max_position_embeddings") if name in fields}
    if original in rope:
        rope = rope | {original: _SWITCH}
    return fields | early | {"rope_parameters": rope}


def _padding_difference(model: nn.Module, task: Task) -> float:
    tokens = random_tokens(2, _LONG)
    alone = model(**task_inputs(task, tokens[:1, :_SHORT], [_SHORT])).logits
    beside = model(**task_inputs(task, tokens, [_SHORT, _LONG])).logits[:1]
    if alone.dim() == 3:
        beside = beside[:, : alone.shape[1]]
    return _apart(beside, alone)


def _batch(task: Task, numbers: SampleNumbers) -> dict[str, torch.Tensor]:
    """Makes a batch of samples that differ in length, and that depend on their numbers alone."""
    shortest, longest = _LENGTHS
    draws = [torch.Generator().manual_seed(number) for number in numbers]
    rows = [torch.randint(3, VOCABULARY, (longest,), generator=draw) for draw in draws]
    lengths = [shortest + number % (longest - shortest + 1) for number in numbers]
    inputs = task_inputs(task, torch.stack(rows)[:, : max(lengths)], lengths)
    if task == "sequence-classification":
        inputs["labels"] = torch.tensor(numbers) % 2
    return inputs


def _attention_difference(
    model_class: Any, fields: dict[str, Any], task: Task, pair: tuple[Attention, Attention]
) -> float:
    inputs = task_inputs(task, random_tokens(2, _LONG), [_SHORT, _LONG])
    with seeded(1):
        first = small_model(model_class, fields, pair[0])
    second = small_model(model_class, fields, pair[1])
    second.load_state_dict(first.state_dict())
    one, other = first(**inputs).logits, second(**inputs).logits
    if task in ("causal-lm", "masked-lm"):  # rows of padding may be anything
        kept = inputs["attention_mask"].bool()
        one, other = one[kept], other[kept]
    return _apart(other, one)


def _apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())
