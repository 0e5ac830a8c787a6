"""Batches of users' batch makers: their tensors, the module's part of them, and their weights."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from search_spaces.errors import ModelError
from search_spaces.facts import SAMPLES, Count, TargetRule

SampleNumbers = tuple[int, ...]
BatchMaker = Callable[[SampleNumbers], Mapping[str, Any]]
TARGETS = "targets"  # key of a batch: the weight of its loss, unless it is the module's argument
ONE = TargetRule(count=Count.ONE)
_SHIFTED = {
    Count.LABELS: Count.SHIFTED_LABELS,
    Count.NONZERO: Count.SHIFTED_NONZERO,
    Count.SUM: Count.SHIFTED_SUM,
}
_PREFERENCE = tuple(Count)  # of rules that fit alike


def batch_tensors(batch: object) -> dict[str, Any]:
    """Returns a batch with arrays and lists of numbers as tensors.

    Scalars, booleans, None and texts stay as they are, for the module's forward.

    Raises:
        ModelError: If it is no mapping, or has an array that torch cannot take; names the key.
    """
    if not isinstance(batch, Mapping):
        raise ModelError(
            f"the batch maker returned {type(batch).__name__}, must return a mapping of the"
            " module's keyword arguments to tensors"
        )
    return {str(key): _with_tensors(value, str(key)) for key, value in batch.items()}


def _with_tensors(value: Any, key: str) -> Any:
    if isinstance(value, Mapping):
        return {inner: _with_tensors(one, f"{key}.{inner}") for inner, one in value.items()}
    is_array = isinstance(value, np.ndarray | np.generic)
    if isinstance(value, list | tuple):
        leaf: Any = value
        while isinstance(leaf, list | tuple) and leaf:
            leaf = leaf[0]
        if not isinstance(leaf, int | float | np.ndarray | np.generic):
            return type(value)([_with_tensors(one, key) for one in value])
    elif not is_array:
        return value
    try:
        is_plain = not is_array and type(leaf) in (bool, int, float)  # fp32, as torch has them
        return torch.tensor(value) if is_plain else torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"the batch maker's {key!r} is no array of numbers with rows of one length:"
            f" {' '.join(str(error).split())}"
        ) from error


def takes_targets(module: nn.Module) -> bool:
    """Tells if a batch's `targets` are an argument of the module, not the weight of its loss."""
    return TARGETS in inspect.signature(module.forward).parameters


def module_inputs(batch: Mapping[str, Any], *, takes_targets: bool) -> dict[str, Any]:
    """Returns what a batch of `batch_tensors` has for the module: all but a weight in `targets`."""
    weight = batch.get(TARGETS)
    numbers = weight.numel() if isinstance(weight, torch.Tensor) else 1
    if takes_targets or numbers != 1:
        return dict(batch)
    return {name: value for name, value in batch.items() if name != TARGETS}


def inputs_of(module: nn.Module, batch: object) -> dict[str, Any]:
    """Returns the arguments that a user's batch has for a module, in tensors.

    Raises:
        ModelError: As `batch_tensors`.
    """
    return module_inputs(batch_tensors(batch), takes_targets=takes_targets(module))


def refuse_other_inputs(module: nn.Module, batch: Mapping[str, Any]) -> None:
    """Raises a `ModelError` if forward does not take the entries of a batch."""
    inputs = module_inputs(batch, takes_targets=takes_targets(module))
    try:
        signature = inspect.signature(module.forward)
    except ValueError:  # it has none
        return
    try:
        signature.bind(**inputs)
    except TypeError as error:
        raise ModelError(
            f"{type(module).__name__}.forward({', '.join(signature.parameters)}) does not take a"
            f" batch with {', '.join(inputs)}: {error}"
        ) from error


def target_weight(rule: TargetRule, batch: Mapping[str, Any], samples: int) -> float:
    """Returns the weight of a micro-batch's loss.

    Args:
        rule: A rule.
        batch: All that the batch maker returned, in tensors.
        samples: Samples of the batch.

    Raises:
        ModelError: If the batch lacks the entry that the rule counts.
    """
    if rule in (SAMPLES, ONE):
        return float(samples if rule == SAMPLES else 1)
    value = dict(_numbers(batch)).get(rule.key)
    if value is None:
        raise ModelError(
            f"the batch maker returned no number under {rule.key!r}, by which micro-batches are"
            " weighted: return it with every batch"
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
            counts += [_SHIFTED[count] for count in counts]
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
