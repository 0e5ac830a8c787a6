"""Makes footprints: traces each variant at two micro-batches, and at two degrees if split."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

from search_spaces.costs.footprint import Footprint, Split, Variant
from search_spaces.costs.plan_encoding import VariantKey
from search_spaces.errors import ModelError
from search_spaces.facts import ModelFacts
from search_spaces.plan import Attention, Loss, Plan
from search_spaces.settings.render import render_torch
from search_spaces.specification.schema import SweepSpec
from workers.models.built import BuiltModel, seeded
from workers.models.config import one_sentence
from workers.models.fake_memory import FakeMemory
from workers.models.tensor_plan import tensor_facts
from workers.parallel.tensor import split_blocks
from workers.tracing.model_work import count_work
from workers.tracing.pass_costs import Grid, part_costs, tied_parameters
from workers.tracing.step import StepFailedError, TracedStep, trace_step
from workers.tracing.traced_model import (
    Splitter,
    TracedModel,
    fake_ranks,
    in_fake_memory,
    traced_model,
)
from workers.tracing.variants import (
    MICRO_BATCHES,
    RunsDifferError,
    batch_of,
    degrees_of,
    fit_variant,
    lengths_of,
    longest_spec,
    pass_plan,
)

_USERS_REMEDY = (
    'register a fake implementation with torch.library.register_fake("{name}"), see'
    " https://docs.pytorch.org/docs/stable/library.html"
)
_TORCHS_REMEDY = (
    "wrap the code that calls it in a custom operator (torch.library.custom_op) and register a"
    " fake implementation of that (torch.library.register_fake)"
)
_NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException)


def untraceable(name: str, failed: StepFailedError) -> ModelError:
    """Makes the error for the user of model `name`, with the operator and a remedy."""
    cause = failed.__cause__
    assert cause is not None
    operator = getattr(cause, "func", None) or failed.operator
    if operator is None:
        return ModelError(f"{name} cannot be traced: its code raises {_summary(cause)}")
    label = str(operator).removesuffix(".default")
    is_users = getattr(operator, "namespace", "aten") not in ("aten", "prims", "_c10d_functional")
    if isinstance(cause, _NEEDS_VALUES):
        reason = "has a shape or result that depends on values, which fake tensors do not have"
    elif is_users or isinstance(cause, UnsupportedOperatorException | NotImplementedError):
        reason = "has no implementation for fake tensors"
    else:
        return ModelError(f"{name} cannot be traced: operator {label} raises {_summary(cause)}")
    full = getattr(getattr(operator, "_schema", None), "name", operator)
    remedy = _USERS_REMEDY.format(name=full) if is_users else _TORCHS_REMEDY
    return ModelError(f"{name} cannot be traced: operator {label} {reason}; {remedy}")


def _summary(cause: BaseException) -> str:
    return f"{type(cause).__name__}: {one_sentence(cause)}"


# compiled code saves and computes no more than what it is made of; Liger's kernel is in chunks too
_TRACED_LOSSES: Mapping[Loss, Loss] = {"compiled": "whole", "fused": "chunked"}
NO_FACTS = ModelFacts(  # rendering the settings of a split reads none of them
    name="", architecture="", parameters=0, blocks=0, attentions=(), packing=()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """A model under one attention, with its spec and device."""

    spec: SweepSpec
    device: str
    mode: FakeMemory
    traced_model: TracedModel

    @property
    def model(self) -> BuiltModel:
        return self.traced_model.model


def make_footprint(
    spec: SweepSpec, wanted: Iterable[VariantKey], *, device: str, digest: str
) -> Footprint:
    """Traces the model of `spec` in each of the wanted variants.

    Args:
        spec: Model, adapters, data and sequence length count.
        wanted: The variants.
        device: "cuda" or "cpu", whose kernels are emulated.
        digest: Key of the footprint in the cache.

    Raises:
        ModelError: If the model cannot be found, built, traced or split.
    """
    mode = FakeMemory()
    subjects: dict[Attention, _Subject] = {}
    traced: dict[VariantKey, tuple[Variant, int]] = {}
    variants: list[Variant] = []
    tied = 0
    for given in dict.fromkeys(wanted):
        kernel = traced_attention(given.attention)
        if kernel not in subjects:
            model = traced_model(spec, kernel, mode)
            subjects[kernel] = _Subject(
                spec=longest_spec(model.model, spec), device=device, mode=mode, traced_model=model
            )
        loss = _TRACED_LOSSES.get(given.loss, given.loss)
        key = given._replace(attention=kernel, loss=loss)
        if key not in traced:
            traced[key] = _trace_variant(subjects[kernel], key)
        variant, tied = traced[key]
        variants.append(replace(variant, attention=given.attention, loss=given.loss))
    subject = next(iter(subjects.values()))
    batch = batch_of(subject.model, subject.spec, pass_plan(MICRO_BATCHES[0]))
    lengths = lengths_of(subject.model, spec)
    return Footprint(
        model=spec.model.name,
        digest=digest,
        tokens=batch.tokens // batch.samples,
        depth=sum(len(kind) for kind in subject.traced_model.kinds),
        tied_parameters=tied,
        varied=subject.model.vocab_size is not None and spec.data.kind != "fixed",
        lengths=lengths,
        row_tokens=spec.train.sequence_length if lengths else 0,
        variants=tuple(variants),
        work=count_work(spec),
    )


def traced_attention(attention: Attention) -> Attention:
    """Returns the attention to trace: flash attention saves and computes the same as sdpa."""
    return "sdpa" if attention.startswith("flash") else attention


def _trace_variant(subject: _Subject, key: VariantKey) -> tuple[Variant, int]:
    model, split = subject.model, key.split
    if split == "sequence":
        refusal = tensor_facts(model.module, dict(model.tensor_plan)).sequence_refusal
        if refusal is not None:
            raise ModelError(refusal)
    degrees = (1,) if split == "none" else degrees_of(model)
    grid = Grid(micro_batches=MICRO_BATCHES, degrees=degrees)
    runs, tied = [], []
    for batch, degree in grid.points:
        traced = _trace_pass(subject, key, batch, degree, math.lcm(*degrees))
        runs.append(part_costs(traced, subject.traced_model.present))
        tied.append(tied_parameters(traced))
    try:
        variant = fit_variant(runs, grid, subject.traced_model.kinds, key)
    except RunsDifferError as error:
        raise ModelError(
            f"{subject.spec.model.title} cannot be traced: its work differs between micro-batches"
            f" of {MICRO_BATCHES[0]} and of {MICRO_BATCHES[1]} samples ({error})"
        ) from error
    return variant, int(grid.extent(tied).at(0, 1))


def _trace_pass(
    subject: _Subject, key: VariantKey, micro_batch: int, degree: int, multiple: int
) -> TracedStep:
    """Traces one pass; rows are padded to a multiple of all traced degrees."""
    spec, mode, split = subject.spec, subject.mode, key.split
    batch = batch_of(subject.model, spec, pass_plan(micro_batch, multiple, split=split))
    with _splitter(pass_plan(micro_batch, degree, split=split), split) as splitter:
        model = in_fake_memory(subject.model, key, mode, splitter)
        try:
            return trace_step(
                model,
                subject.traced_model.present,
                batch.inputs,
                compute=key.compute,
                device=subject.device,
                mode=mode,
            )
        except StepFailedError as error:
            raise untraceable(spec.model.title, error) from error.__cause__


@contextmanager
def _splitter(plan: Plan, split: Split) -> Iterator[Splitter | None]:
    """Provides a function that splits a model as the plan says, None for an unsplit plan."""
    if split == "none":
        yield None
        return
    with fake_ranks(plan) as mesh, seeded(0):  # splitting sets the seed of dropout
        settings = render_torch(plan, NO_FACTS)
        yield lambda model: split_blocks(model, settings, mesh)
