"""Counts the work that a model needs per token, from the operators of one traced step."""

import contextlib
import functools
import math
from collections import defaultdict

import numpy as np
from torch import nn

from search_spaces.costs.model_work import CEILING_TOKENS, ModelWork
from search_spaces.costs.plan_encoding import VariantKey
from search_spaces.errors import UserError
from search_spaces.plan import Attention
from search_spaces.specification.schema import SweepSpec
from workers.data.batches import BatchSource, DatasetSource, is_causal_lm
from workers.models.built import batch_source, seeded
from workers.models.fake_memory import FakeMemory
from workers.models.tensor_plan import text_config
from workers.models.user_code import user_code_errors
from workers.tracing.operators import FusedCall
from workers.tracing.step import trace_step
from workers.tracing.traced_model import in_fake_memory, traced_model

_FLOPS = 2  # FLOPs of a multiplication and an addition
_BACKWARD = 2  # attention's backward has two products for each one of forward


def count_work(spec: SweepSpec) -> ModelWork | None:
    """Returns the work per token, for the lengths of the spec's samples.

    Counted once per process, without memory and on a sample of mean length; attention grows with
    the square of a sample's length. Attention that a model computes by plain products counts in
    full, since nothing tells its mask.

    Returns:
        None for a model that cannot run without values, because it branches on them, say.
    """
    return _counted(spec.model_dump_json())


@functools.lru_cache(maxsize=8)
def _counted(spec_json: str) -> ModelWork | None:
    spec = SweepSpec.model_validate_json(spec_json)
    attentions: tuple[Attention, ...] = ("sdpa", "eager")
    for attention in attentions:
        with contextlib.suppress(UserError), user_code_errors(spec.model.name):
            return _count(spec, attention)
    return None


def _count(spec: SweepSpec, attention: Attention) -> ModelWork:
    mode = FakeMemory()
    traced = traced_model(spec, attention, mode)
    source = batch_source(traced.model, spec)
    with seeded(spec.train.seed):
        batch = source.typical()
    log = trace_step(
        in_fake_memory(traced.model, VariantKey("sdpa", "fp32", "none"), mode, None),
        traced.present,
        batch.inputs,
        compute="fp32",
        device="cuda",
        mode=mode,
    ).log
    times = {kind[0]: len(kind) for kind in traced.kinds} if traced.is_stack else {}  # of blocks
    layers: defaultdict[tuple[float, float, float], float] = defaultdict(float)
    matmuls = attending = everything = 0.0
    for at, operation in enumerate(log.operations):
        is_forward, count = at < log.forward_ends, times.get(operation.part, 1)
        for product in operation.work.products:
            flops = count * _FLOPS * math.prod(product.sizes)
            matmuls += flops
            if is_forward:
                layers[product.rows, product.columns, product.inner] += flops
        if call := operation.work.attention:
            sizes = call.heads * (call.head_size + call.value_size)
            products = count * _FLOPS * sizes * (1 if is_forward else _BACKWARD)
            attending += products * _pairs(call, traced.model.module)
            everything += products * call.queries * call.keys
    tokens, growth = batch.tokens, _growth(source, batch.tokens)
    return ModelWork(
        matmul_flops=matmuls / tokens,
        attention_flops=attending * growth / tokens,
        full_attention_flops=everything * growth / tokens if everything else None,
        layers=tuple(
            (rows * CEILING_TOKENS / tokens, columns, inner, flops / tokens)
            for (rows, columns, inner), flops in layers.items()
        ),
    )


def _pairs(call: FusedCall, module: nn.Module) -> float:
    """Returns the pairs of a query and a key that attend to each other.

    A causal language model that makes its mask itself has a sliding window, or a bias in the mask.
    """
    masked = call.masked and call.queries == call.keys and is_causal_lm(module)
    if not (call.causal or masked):
        return call.queries * call.keys
    window: int | None = getattr(text_config(module), "sliding_window", None) if masked else None
    width = min(window or call.keys, call.keys, call.queries)
    return width * (width + 1) / 2 + (call.queries - width) * width


def _growth(source: BatchSource, tokens: int) -> float:
    """Returns attention per token of all samples over that of a sample of `tokens` tokens."""
    if not isinstance(source, DatasetSource):
        return 1.0
    lengths = source.dataset.lengths.astype(np.float64)
    return float((lengths**2).mean() / lengths.mean() / tokens)
