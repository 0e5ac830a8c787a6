"""Probes of a user's function: its batches, and the loss of some samples together and alone.

Called where plans are chosen, not in workers: it builds the model and runs some forward passes on
the CPU. A model that is too large for that, or that fails, finds nothing; a trial shows why.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from search_spaces.facts import ModelFacts
from search_spaces.spec.schema import ModelSpec
from search_spaces.spec.sections import TrainSpec
from workers.data.batches import FunctionSource, batch_source_of
from workers.data.collate import MicroBatch
from workers.engines.base import require_loss
from workers.models.built import SampleNumbers, seeded
from workers.models.function import call_function, is_function
from workers.models.loss_probes import take_batch_statistics
from workers.models.user_code import UserCodeError, importable_from_cwd, user_code_errors

_MOST_PARAMETERS = 2**26  # of a model that is built twice
_MOST_WORK = 2**32  # parameters times values of a batch: a forward pass of a second or so
_PAIR: SampleNumbers = (0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionFindings:
    """Findings of the probes of a user's function.

    Attributes:
        data: Share of the values of a batch that differ when it is made again.
        batch: How much the loss of two samples differs from the mean of theirs.
        smallest_batch: Fewest samples whose loss can be computed.
    """

    data: float = 0.0
    batch: float = 0.0
    smallest_batch: int = 1


def with_function_findings(facts: ModelFacts, spec: ModelSpec, train: TrainSpec) -> ModelFacts:
    """Returns the facts with what the probes of a user's function find; unchanged for others."""
    if not is_function(spec) or not 0 < facts.parameters <= _MOST_PARAMETERS:
        return facts
    found = _findings(spec.model_dump_json(), train.seed, facts.parameters)
    return replace(
        facts,
        data_difference=found.data,
        batch_difference=found.batch,
        smallest_micro_batch=found.smallest_batch,
    )


@lru_cache(maxsize=32)
def _findings(spec_json: str, seed: int, parameters: int) -> FunctionFindings:
    spec = ModelSpec.model_validate_json(spec_json)
    found = FunctionFindings()
    with _guarded(spec, seed):
        _, other_rank = call_function(spec)
        with seeded(seed):
            module, batch_maker = call_function(spec)
        source = batch_source_of(module, batch_maker)
        found = replace(
            found, data=_data_difference(source, FunctionSource(batch_maker=other_rank))
        )
        values = sum(tensor.numel() for tensor in source.batch(_PAIR)[0].inputs.values())
        # losses of batches that are not the same say nothing
        if not found.data and parameters * values <= _MOST_WORK:
            found = replace(found, **_batch_findings(module, source))
    return found


@contextlib.contextmanager
def _guarded(spec: ModelSpec, seed: int) -> Any:
    with (
        contextlib.suppress(UserCodeError),
        user_code_errors(spec.name),
        importable_from_cwd(),
        seeded(seed),
        torch.no_grad(),
    ):
        yield


def _data_difference(source: FunctionSource, other_rank: FunctionSource) -> float:
    """Returns the largest share of values that differ between two batches of the same samples.

    A batch is made again after others, in another order, and by another rank's batch maker.
    """
    first = source.batch(_PAIR)[0].inputs
    source.batch((2, 3))
    again = source.batch(_PAIR)[0].inputs
    reversed_order = source.batch(_PAIR[::-1])[0].inputs
    elsewhere = other_rank.batch(_PAIR)[0].inputs
    return max(
        _difference(first, again),
        _difference(first, elsewhere),
        _difference(_sorted(first), _sorted(reversed_order)),
    )


def _difference(batch: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    if batch.keys() != other.keys():
        return 1.0
    pairs = [(batch[name], other[name]) for name in batch]
    if any(one.shape != two.shape for one, two in pairs):
        return 1.0
    differing = sum(int((one != two).sum()) for one, two in pairs)
    values = sum(int(one.numel()) for one, _ in pairs)
    return differing / max(values, 1)


def _sorted(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: tensor[_row_order(tensor)] if tensor.dim() and len(tensor) == len(_PAIR) else tensor
        for name, tensor in batch.items()
    }


def _row_order(tensor: torch.Tensor) -> list[int]:
    rows = tensor.flatten(1).tolist() if tensor.dim() > 1 else tensor.unsqueeze(1).tolist()
    return sorted(range(len(rows)), key=rows.__getitem__)


def _batch_findings(module: nn.Module, source: FunctionSource) -> dict[str, Any]:
    take_batch_statistics(module)
    both, _ = source.batch(_PAIR)
    loss = _loss(module, both)
    alone: list[tuple[MicroBatch, torch.Tensor]] = []
    with contextlib.suppress(UserCodeError), user_code_errors("one sample"):
        batches = [source.batch((number,))[0] for number in _PAIR]
        alone = [(batch, _loss(module, batch)) for batch in batches]
    if not alone:
        return {"smallest_batch": len(_PAIR)}
    mean = torch.stack([one * batch.targets for batch, one in alone]).sum() / both.targets
    return {"batch": float((loss - mean).abs() / mean.abs())}


def _loss(module: nn.Module, batch: MicroBatch) -> torch.Tensor:
    return require_loss(module(**batch.inputs))
