"""The knobs that a sweep searches: which values each has, and what it is called.

To add a knob: a field in `Plan`, one in `SpaceSpec`, an entry here; then what refuses it
(`rules.py`), what it sets (`render.py`) and what the worker does with it (`workers/parallel`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from search_spaces.facts import ModelFacts
from search_spaces.spec.schema import SweepSpec

Values = tuple[Any, ...]

CHECKPOINT_RATIOS = (0.0, 0.25, 0.5, 0.75, 1.0)  # what is searched where the spec names none


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One dimension of the space.

    `default` gives the values to search where the spec names none. A `lossy` knob changes the
    numerics. `memory` is 1 if a larger value never takes less memory, -1 if it never takes more,
    0 if nobody knows.
    """

    name: str  # of the field in Plan and in SpaceSpec
    default: Callable[[SweepSpec, ModelFacts, int], Values]
    lossy: bool = False
    memory: Literal[-1, 0, 1] = 0


def _powers_of_two(most: int) -> Values:
    return tuple(2**power for power in range(most.bit_length()) if 2**power <= most)


def _micro_batches(spec: SweepSpec, _: ModelFacts, workers: int) -> Values:
    per_rank = max(spec.train.global_batch // workers, 1)
    dividing = {size for size in _powers_of_two(per_rank) if per_rank % size == 0}
    return tuple(sorted(dividing | {per_rank}))


def _checkpoint_ratios(_: SweepSpec, model: ModelFacts, __: int) -> Values:
    return CHECKPOINT_RATIOS if model.blocks else (0.0,)


def _batchings(spec: SweepSpec, model: ModelFacts, _: int) -> Values:
    if spec.data.kind == "fixed":
        return ("padded",)
    return ("padded", "grouped", "packed") if model.packing else ("padded", "grouped")


KNOBS: tuple[Knob, ...] = (
    Knob(name="engine", default=lambda *_: ("torch",)),
    Knob(
        name="zero_stage",
        default=lambda _, __, workers: (0, 2, 3) if workers > 1 else (0,),
    ),
    Knob(name="micro_batch", default=_micro_batches, memory=1),
    Knob(
        name="checkpoint_ratio",
        default=_checkpoint_ratios,
        memory=-1,
    ),
    Knob(name="attention", default=lambda _, model, __: model.attentions),
    Knob(
        name="precision",
        default=lambda spec, _, __: (spec.train.precision,),
        lossy=True,
    ),
    Knob(name="batching", default=_batchings),
    Knob(name="data", default=lambda _, __, workers: (workers,)),
)
# accumulation is no knob: it follows from the global batch, micro_batch and data
