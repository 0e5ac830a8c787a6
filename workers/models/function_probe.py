"""Probe of a model that makes its own batches: they, and a step of training.

Called where plans are chosen, in a process of its own: it builds the model on the CPU. If it is
too large for that, a small model of its transformers class is probed, or none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from search_spaces.errors import DataError
from search_spaces.facts import SAMPLES, ModelFacts, StepFindings, with_findings
from search_spaces.specification.schema import ModelSpec, Task
from search_spaces.specification.sections import TrainSpec
from workers.data.batches import FunctionSource, batch_source_of
from workers.data.user_batches import SampleNumbers, refuse_other_inputs
from workers.models.built import PROBE_SAMPLES, seeded
from workers.models.function import MOST_STEPS, NumberedBatches, build_function, call_function
from workers.models.load import build, build_whole
from workers.models.shapes import random_batches
from workers.models.small_model import VOCABULARY, small_fields_of, small_model, tolerated
from workers.models.step_probe import probe_step, weight_findings
from workers.models.user_code import (
    UserCodeError,
    error_summary,
    importable_from_cwd,
    user_code_errors,
)

_MOST_PARAMETERS = 2**28  # of a model that is built twice
_SMALL_LENGTH = 96  # tokens or frames of a small model's samples


def with_function_findings(facts: ModelFacts, spec: ModelSpec, train: TrainSpec) -> ModelFacts:
    """Returns the facts of a model that makes its own batches, with findings; others unchanged.

    Raises:
        ModelError: If forward returns no loss, or one for each sample; says what to return.
        DataError: If the batch maker cannot make a batch.
    """
    if facts.vocab_size is not None:
        return facts
    data, step = _findings(spec, train, facts.task, is_large=facts.parameters > _MOST_PARAMETERS)
    return with_findings(replace(facts, data_difference=data), step)


def _findings(
    spec: ModelSpec, train: TrainSpec, task: Task | None, *, is_large: bool
) -> tuple[float, StepFindings]:
    data, makes_one = 0.0, False
    try:
        with user_code_errors(spec.name), importable_from_cwd(), seeded(train.seed):
            if task is not None:
                return data, _of_shapes(spec, train, task, is_large=is_large)
            if is_large:
                with torch.device("meta"):
                    module, batch_maker = call_function(spec)
                source = batch_source_of(module, batch_maker)
                reason = f"it has more than {_MOST_PARAMETERS:,} parameters"
                step = StepFindings(not_probed=reason, **weight_findings(module))
                return data, _of_twin(module, source, step)
            _, batches = call_function(spec)
            _require(batches, (batches.samples or MOST_STEPS * train.global_batch) - 1)
            makes_one = True
            other_rank = FunctionSource(batch_maker=batches)
            built = build_function(spec, train)
            assert built.batch_maker is not None
            source = batch_source_of(built.module, built.batch_maker)
            data = _data_difference(source, other_rank)
            if data:  # losses of batches that are not the same say nothing
                return data, StepFindings(not_probed="its batches differ when made again")
            rule = source.rule_of(source.entries(PROBE_SAMPLES))
            refuse_other_inputs(built.module, source.entries(PROBE_SAMPLES))
            step = probe_step(built.module, source.entries, rule)
            is_slow = step.not_probed and not step.fails
            return data, _of_twin(built.module, source, step) if is_slow else step
    except UserCodeError as error:
        is_elsewhere = isinstance(error.__cause__, OSError | ImportError)  # may be on the nodes
        fails = not (is_elsewhere or makes_one)  # micro-batches of one may work
        return data, StepFindings(not_probed=str(error), fails=fails)


def _require(batches: NumberedBatches, number: int) -> None:
    """Makes the batch of one sample, of which some faults are the same on every machine."""
    try:
        batches((number,))
    except (TypeError, NameError, AttributeError, ValueError, ArithmeticError) as error:
        raise DataError(
            f"the batch maker of {batches.function} fails for sample {number}:"
            f" {error_summary(error)}; it is called with a tuple of sample numbers"
        ) from error


def _of_twin(module: nn.Module, source: FunctionSource, findings: StepFindings) -> StepFindings:
    """Returns the findings of a small model of a transformers class, for one that was not probed.

    Token ids wrap at its vocabulary. Others keep their findings.
    """
    base: Any = module
    if hasattr(base, "get_base_model"):  # of peft
        base = base.get_base_model()
    twin = findings
    if hasattr(getattr(base, "config", None), "to_json_string"):
        with tolerated(type(base).__name__):
            small = small_model(type(base), small_fields_of(base, "causal-lm"), "eager")
            rule = source.rule_of(source.entries(PROBE_SAMPLES))
            twin = probe_step(small, lambda n: _wrapped(source.entries(n)), rule, gradients=False)
    return replace(twin, tied=findings.tied, dtypes=findings.dtypes, fails=False)


def _of_shapes(spec: ModelSpec, train: TrainSpec, task: Task, *, is_large: bool) -> StepFindings:
    """Returns the findings of a model of transformers on random batches of a small one's shapes.

    One that cannot be made small is probed itself, unless it is large.
    """
    module = build(spec, train, attention="eager").module
    step = StepFindings(not_probed=f"{type(module).__name__} cannot be made small")
    with tolerated(type(module).__name__):
        fields = small_fields_of(module, task)
        small = small_model(type(module), fields, "eager")
        step = replace(_on_shapes(spec, task, small, _SMALL_LENGTH), fails=False)
    if step.not_probed and not is_large:
        whole = build_whole(spec, train, attention="eager").module
        step = _on_shapes(spec, task, whole, train.sequence_length)
    return replace(step, **weight_findings(module))


def _on_shapes(spec: ModelSpec, task: Task, module: nn.Module, length: int) -> StepFindings:
    maker = random_batches(spec, task, module, sequence_length=length, seed=0)
    assert maker is not None
    source = batch_source_of(module, maker)
    rule = SAMPLES if task == "ctc" else source.rule_of(source.entries(PROBE_SAMPLES))
    return probe_step(module, source.entries, rule)


def _wrapped(entries: Mapping[str, Any]) -> Any:
    def wrap(one: torch.Tensor) -> torch.Tensor:
        is_wide = not one.is_floating_point() and bool((one >= VOCABULARY).any())
        return torch.where(one < 0, one, one % VOCABULARY) if is_wide else one

    return tree_map_only(torch.Tensor, wrap, dict(entries))


def _data_difference(source: FunctionSource, other_rank: FunctionSource) -> float:
    """Returns the largest share of values that differ between two batches of the same samples.

    A batch is made again after others, in another order, and by another rank's batch maker.
    """
    first, reversed_order = _tensors(source, PROBE_SAMPLES), _tensors(source, PROBE_SAMPLES[::-1])
    again = _tensors(source, PROBE_SAMPLES)
    return max(
        _difference(first, again),
        _difference(first, _tensors(other_rank, PROBE_SAMPLES)),
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
    """Returns the values in order, since samples may have several rows, or lie along any axis."""
    values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return values.flatten().sort().values
