"""What trials that ran side by side did to each other: a proof has the cluster to itself."""

from __future__ import annotations

import math
from collections.abc import Iterator

from orchestrator.core.state import SweepState
from search_spaces.estimate import Estimate
from search_spaces.outcome import Measured
from search_spaces.record import Record

_BESIDE = 0.5  # of a trial's time beside another one, from which on it counts as such


def beside_sentence(state: SweepState) -> str:
    """Whether trials disturbed each other; empty if none ran beside another.

    Measured on the plans that were proven: their trials ran beside others, their proofs alone.
    """
    if not any(_was_beside(record, state.records) for record in state.records):
        return ""
    found = [(proof, ratio) for proof, ratio in _ratios(state) if ratio is not None]
    if not found:
        return (
            "trials ran side by side; whether they disturbed each other is not known, for no plan"
            " of such a trial was proven alone"
        )
    proof, ratio = found[-1]
    told = f"{ratio.value:.2f} x ({ratio.low:.2f} to {ratio.high:.2f})"
    beside = f"alone, trial {proof.number}'s plan ran at {told} its speed beside other trials"
    if ratio.low > 1:
        return (
            f"trials disturbed each other: {beside}; cluster.groups: 1 measures one at a time, and"
            " cluster.share_nodes: false keeps them apart"
        )
    if ratio.high < 1:
        return f"trials did not slow each other down: {beside}, so that the machines have changed"
    return f"trials did not disturb each other beyond their intervals: {beside}"


def _ratios(state: SweepState) -> Iterator[tuple[Record, Estimate | None]]:
    for proof in state.proofs:
        trial = next((r for r in state.records if r.number == proof.number), None)
        if trial is not None and _was_beside(trial, state.records):
            yield proof, _ratio(proof, trial)


def _was_beside(record: Record, others: tuple[Record, ...]) -> bool:
    took = record.ended_at - record.started_at
    shared = sum(
        max(min(record.ended_at, other.ended_at) - max(record.started_at, other.started_at), 0.0)
        for other in others
        if other.number != record.number
    )
    return took > 0 and shared >= _BESIDE * took


def _ratio(proof: Record, trial: Record) -> Estimate | None:
    if not (isinstance(proof.outcome, Measured) and isinstance(trial.outcome, Measured)):
        return None
    alone, beside = proof.outcome.samples_per_second, trial.outcome.samples_per_second
    ratio = alone.value / beside.value
    wide = math.hypot(alone.relative_half_width, beside.relative_half_width)
    return Estimate(value=ratio, low=ratio * max(1 - wide, 0.0), high=ratio * (1 + wide))
