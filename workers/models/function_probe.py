"""Probe of a user's function: its batches, and a step of training.

Called where plans are chosen, in a process of its own: it builds the model on the CPU. A model
that is too large for that is not probed, and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import torch
from torch.utils._pytree import tree_leaves

from search_spaces.facts import ModelFacts, with_findings
from search_spaces.spec.schema import ModelSpec
from search_spaces.spec.sections import TrainSpec
from search_spaces.step_findings import StepFindings
from workers.data.batches import FunctionSource, batch_source_of
from workers.models.built import SampleNumbers, seeded
from workers.models.function import build_function, call_function, is_function
from workers.models.step_probe import probe_step
from workers.models.user_code import UserCodeError, importable_from_cwd, user_code_errors

_MOST_PARAMETERS = 2**28  # of a model that is built twice
_PAIR: SampleNumbers = (0, 1)


def with_function_findings(facts: ModelFacts, spec: ModelSpec, train: TrainSpec) -> ModelFacts:
    """Returns the facts with what the probe of a user's function finds; unchanged for others.

    Raises:
        ModelError: If forward returns no loss, or one for each sample; says what to return.
    """
    if not is_function(spec):
        return facts
    if facts.parameters > _MOST_PARAMETERS:
        millions = _MOST_PARAMETERS / 1e6
        reason = f"it has more than {millions:.0f} million parameters"
        return with_findings(facts, StepFindings(not_probed=reason))
    data, step = _findings(spec.model_dump_json(), train.model_dump_json())
    return with_findings(replace(facts, data_difference=data), step)


@lru_cache(maxsize=32)
def _findings(spec_json: str, train_json: str) -> tuple[float, StepFindings]:
    spec = ModelSpec.model_validate_json(spec_json)
    train, data = TrainSpec.model_validate_json(train_json), 0.0
    try:
        with user_code_errors(spec.name), importable_from_cwd(), seeded(train.seed):
            other_rank = FunctionSource(batch_maker=call_function(spec)[1])
            built = build_function(spec, train)
            assert built.batch_maker is not None
            source = batch_source_of(built.module, built.batch_maker)
            data = _data_difference(source, other_rank)
            if data:  # losses of batches that are not the same say nothing
                return data, StepFindings(not_probed="its batches differ when made again")
            return data, probe_step(
                built.module, source.entries, source.rule_of(source.entries(_PAIR))
            )
    except UserCodeError as error:
        return data, StepFindings(not_probed=str(error))


def _data_difference(source: FunctionSource, other_rank: FunctionSource) -> float:
    """Returns the largest share of values that differ between two batches of the same samples.

    A batch is made again after others, in another order, and by another rank's batch maker.
    """
    first = _tensors(source, _PAIR)
    source.entries((2, 3))
    again, reversed_order = _tensors(source, _PAIR), _tensors(source, _PAIR[::-1])
    return max(
        _difference(first, again),
        _difference(first, _tensors(other_rank, _PAIR)),
        _difference([*map(_sorted, first)], [*map(_sorted, reversed_order)]),
    )


def _tensors(source: FunctionSource, numbers: SampleNumbers) -> list[torch.Tensor]:
    leaves = tree_leaves(source.entries(numbers))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _difference(batch: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> float:
    if [one.shape for one in batch] != [one.shape for one in other]:
        return 1.0
    differing = sum(int((one != two).sum()) for one, two in zip(batch, other, strict=True))
    return differing / max(sum(one.numel() for one in batch), 1)


def _sorted(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.dim() or len(tensor) != len(_PAIR):
        return tensor
    rows = tensor.flatten(1).tolist() if tensor.dim() > 1 else tensor.unsqueeze(1).tolist()
    return tensor[sorted(range(len(rows)), key=rows.__getitem__)]
