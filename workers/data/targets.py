"""Weights of micro-batches: what a loss is a mean over, counted in a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from search_spaces.errors import ModelError
from search_spaces.facts import Count, TargetRule
from workers.data.user_batches import TARGETS

SAMPLES, ONE = TargetRule(count=Count.SAMPLES), TargetRule(count=Count.ONE)
_SHIFTED = {
    Count.LABELS: Count.SHIFTED_LABELS,
    Count.NONZERO: Count.SHIFTED_NONZERO,
    Count.SUM: Count.SHIFTED_SUM,
}
_PREFERENCE = tuple(Count)  # of rules that fit alike


def target_weight(rule: TargetRule, batch: Mapping[str, Any], samples: int) -> float:
    """Returns the weight of a micro-batch's loss.

    Args:
        rule: A rule.
        batch: All that the batch maker returned, in tensors.
        samples: Samples of the batch.

    Raises:
        ModelError: If the batch lacks the entry that the rule counts.
    """
    if rule.count is Count.SAMPLES:
        return float(samples)
    if rule.count is Count.ONE:
        return 1.0
    value = dict(_numbers(batch)).get(rule.key)
    if value is None:
        raise ModelError(
            f"the batch maker returned no number under {rule.key!r}, by which micro-batches are"
            " weighed: return it with every batch"
        )
    if rule.count in _SHIFTED.values():
        value = value[..., 1:]
    if rule.count in (Count.LABELS, Count.SHIFTED_LABELS):
        value = value >= 0  # -100, or -1 in some codes, marks what is no label
    elif rule.count in (Count.NONZERO, Count.SHIFTED_NONZERO):
        value = value != 0
    return float(value.sum(dtype=torch.float64))


def assumed_rule(
    batch: Mapping[str, Any], *, shifts_labels: bool, takes_targets: bool
) -> TargetRule:
    """Returns the rule that the keys of a batch suggest, for a loss that was not probed.

    Args:
        batch: What the batch maker returned, in tensors.
        shifts_labels: The loss leaves the first label of each row out.
        takes_targets: The module takes `targets` as an argument.
    """
    numbers = dict(_numbers(batch))
    if TARGETS in numbers and numbers[TARGETS].numel() == 1 and not takes_targets:
        return TargetRule(count=Count.VALUE, key=TARGETS)
    labels = numbers.get("labels")
    if labels is None or labels.dim() < 2 or labels.is_floating_point():
        return SAMPLES
    return TargetRule(count=Count.SHIFTED_LABELS if shifts_labels else Count.LABELS, key="labels")


def offered_rules(batch: Mapping[str, Any], assumed: TargetRule) -> tuple[TargetRule, ...]:
    """Returns the rules that a batch offers: the assumed one, then the usual ones first."""
    rules = [SAMPLES, ONE]
    for key, value in _numbers(batch):
        counts = [Count.SUM if value.dim() else Count.VALUE]
        if value.dim() and not value.is_floating_point() and value.dtype is not torch.bool:
            counts += [Count.LABELS, Count.NONZERO]
        if value.dim() > 1:
            counts += [_SHIFTED[count] for count in counts if count in _SHIFTED]
        rules += [TargetRule(count=count, key=key) for count in counts]
    rules.sort(key=lambda rule: (_PREFERENCE.index(rule.count), "label" not in rule.key))
    return tuple(dict.fromkeys((assumed, *rules)))


def _numbers(batch: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the entries with real numbers; those of nested mappings under a dotted key."""
    for key, value in batch.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{inner}", one) for inner, one in _numbers(value))
        elif type(value) in (int, float) or isinstance(value, torch.Tensor):
            tensor = torch.as_tensor(value)
            if not tensor.is_complex():
                yield str(key), tensor
