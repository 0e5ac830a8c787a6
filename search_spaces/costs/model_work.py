"""Model FLOPs and MFU: one count of the work that a model needs, and one ceiling for its rate.

Model FLOPs are what the mathematics of a training step needs: every product of forward and
backward once, of attention those pairs of tokens that its mask lets through, and tokens without
padding. What a plan or a kernel computes again, or computes for nothing, does not count.
"""

from dataclasses import dataclass

import numpy as np

from search_spaces.costs.matmul_rates import matmul_rates
from search_spaces.facts import ModelFacts
from search_spaces.hardware.device import Device, MatmulPrecision
from search_spaces.trial import Ceiling

CEILING_TOKENS = 8192
"""Tokens of the micro-batch whose matmuls make the ceiling: enough to fill a device, and the same
for every plan, so that MFUs of plans compare like their speeds."""


LayerMatmul = tuple[float, float, float, float]
"""Forward products of one shape: rows of `CEILING_TOKENS` tokens, columns, inner dimension, and
FLOPs of all such products per token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWork:
    """Work of forward and backward per token of a model's samples, in FLOPs.

    Attributes:
        matmul_flops: Of all products except attention's. Frozen weights have no gradients to count.
        attention_flops: Of attention, for pairs of tokens that attend.
        full_attention_flops: The same for all pairs, 12 L d T of papers; None if the model has no
            call of attention to recognize, but perhaps products of its own.
        layers: The matmuls of forward.
    """

    matmul_flops: float
    attention_flops: float
    full_attention_flops: float | None
    layers: tuple[LayerMatmul, ...]

    @property
    def flops_per_token(self) -> float:
        """Model FLOPs of a token."""
        return self.matmul_flops + self.attention_flops

    def paper_flops_per_token(self, facts: ModelFacts) -> float | None:
        """Returns 6 N + 12 L d T, the convention of most papers, for comparisons with them.

        N counts the parameters that a token is multiplied with: without embeddings that are only
        looked up, and of a mixture of experts the active ones. Attention counts in full, causal or
        not. None for adapters, for which the convention has no term, and as
        `full_attention_flops`.

        Source:
            Chowdhery et al. 2022, arXiv:2204.02311, appendix B.
        """
        if self.full_attention_flops is None or facts.trainable is not None:
            return None
        parts = facts.embedding_parameters + sum(facts.block_parameters) + facts.head_parameters
        tied = max(parts - facts.parameters, 0)
        looked_up = max(facts.embedding_parameters - tied, 0)
        return 6 * ((facts.active or facts.parameters) - looked_up) + self.full_attention_flops


def ceiling(device: Device, precision: MatmulPrecision, work: ModelWork) -> Ceiling | None:
    """Returns the ceiling of a model on a device; None if the device lacks the precision.

    It is the rate at which the device runs the model's own matmuls one after another, from the
    shapes that `plimsoll doctor --probe` measured; on a device that was not probed, the dense peak.
    """
    rows, columns, inner, flops = np.array(work.layers, dtype=float).reshape(-1, 4).T
    rates = matmul_rates(device.matmul_points, precision, rows, columns, inner)
    if rates is not None and flops.any():
        mean = float(flops.sum() / (flops / rates).sum())
        return Ceiling(flops_per_second=mean, measured=True)
    peak = device.peak_flops_per_second(precision)
    return Ceiling(flops_per_second=peak, measured=False) if peak else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilization:
    """Model FLOPs per second of a device over its ceiling, with the ceiling; None if unknown.

    `paper_mfu` is the convention of papers, over the peak of the data sheet.
    """

    mfu: float | None = None
    ceiling: Ceiling | None = None
    paper_mfu: float | None = None


def utilization(
    work: ModelWork | None,
    facts: ModelFacts,
    device: Device | None,
    precision: MatmulPrecision,
    tokens_per_second: float,
) -> Utilization:
    """Returns the utilization of a device that trains at a rate.

    Args:
        work: Work of the model; None if it could not be counted.
        facts: Facts about the model.
        device: The device; None if it is unknown.
        precision: Precision of the matmuls.
        tokens_per_second: Tokens that one device trains per second, without padding.
    """
    limit = None if work is None or device is None else ceiling(device, precision, work)
    if work is None or device is None or limit is None:
        return Utilization()
    paper, peak = work.paper_flops_per_token(facts), device.peak_flops_per_second(precision)
    return Utilization(
        mfu=work.flops_per_token * tokens_per_second / limit.flops_per_second,
        ceiling=limit,
        paper_mfu=paper * tokens_per_second / peak if paper and peak else None,
    )
