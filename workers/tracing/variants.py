"""Parts and blocks of a footprint, out of what the runs of one variant showed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from search_spaces.footprint import BlockKind, FusedAttention, Matmul, Part, Pass
from workers.tracing.extents import Grid, as_extent
from workers.tracing.operators import FusedCall, Product
from workers.tracing.reading import PartReading, PassReading
from workers.tracing.recorder import EMBEDDING, HEAD

Run = dict[int, PartReading]
Call = TypeVar("Call", Product, FusedCall)


class UnlikeRunsError(Exception):
    """Passes with other micro-batches went another way; the text says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The parts of a model in one variant."""

    embedding: Part
    blocks: tuple[BlockKind, ...]
    head: Part


def read_stack(runs: Sequence[Run], grid: Grid, kinds: Sequence[tuple[int, ...]]) -> Stack:
    """The parts of a model, as functions of micro-batch and degree.

    Blocks of different kinds that turn out alike become one kind.

    Args:
        runs: What was seen at each point of `grid`.
        grid: Micro-batches and degrees.
        kinds: Places of blocks; of each, the first was traced, or all were.

    Raises:
        UnlikeRunsError: If the runs did not do the same.
    """
    found: dict[Part, list[int]] = {}
    for kind in kinds:
        traced = [place for place in kind if place in runs[0]]
        for place in traced:
            part = _part([run[place] for run in runs], grid)
            places = kind if len(traced) == 1 else (place,)
            found.setdefault(part, []).extend(places)
    return Stack(
        embedding=_part([run[EMBEDDING] for run in runs], grid),
        blocks=tuple(
            BlockKind(indices=tuple(sorted(places)), part=part) for part, places in found.items()
        ),
        head=_part([run[HEAD] for run in runs], grid),
    )


def _part(runs: Sequence[PartReading], grid: Grid) -> Part:
    return Part(
        trained=grid.extent([run.trained for run in runs]),
        frozen=grid.extent([run.frozen for run in runs]),
        saved_bytes=grid.extent([run.saved_bytes for run in runs]),
        kept_bytes=grid.extent([run.kept_bytes for run in runs]),
        input_bytes=grid.extent([run.input_bytes for run in runs]),
        forward=_pass([run.forward for run in runs], grid),
        backward=_pass([run.backward for run in runs], grid),
        recomputed=_pass([run.recomputed for run in runs], grid),
        largest_weight=grid.extent([run.largest_weight for run in runs]).at(0, 1),
    )


def _pass(runs: Sequence[PassReading], grid: Grid) -> Pass:
    return Pass(
        matmuls=_matmuls([run.products for run in runs], grid),
        attentions=_attentions([run.attentions for run in runs], grid),
        traffic_bytes=grid.extent([run.traffic_bytes for run in runs]),
        launches=max(run.launches for run in runs),
        exchanged_bytes=grid.extent([run.exchanged_bytes for run in runs]),
        exchanges=max(run.exchanges for run in runs),
        transient_bytes=grid.peak([run.above_bytes for run in runs]),
    )


def _matmuls(runs: Sequence[tuple[Product, ...]], grid: Grid) -> tuple[Matmul, ...]:
    counted: Counter[Matmul] = Counter()
    for same in _side_by_side(runs):
        batch, rows, columns, inner = map(as_extent, grid.solve([one.sizes for one in same]).T)
        counted[
            Matmul(
                batch=batch,
                rows=rows,
                columns=columns,
                inner=inner,
                element_bytes=same[0].element_bytes,
            )
        ] += 1
    return tuple(replace(matmul, count=count) for matmul, count in counted.items())


def _attentions(runs: Sequence[tuple[FusedCall, ...]], grid: Grid) -> tuple[FusedAttention, ...]:
    counted: Counter[FusedAttention] = Counter()
    for same in _side_by_side(runs):
        heads, queries, keys = map(as_extent, grid.solve([one.sizes for one in same]).T)
        counted[
            FusedAttention(
                heads=heads,
                queries=queries,
                keys=keys,
                head_size=same[0].head_size,
                causal=same[0].causal,
                element_bytes=same[0].element_bytes,
            )
        ] += 1
    return tuple(replace(attention, count=count) for attention, count in counted.items())


def _side_by_side(runs: Sequence[tuple[Call, ...]]) -> list[tuple[Call, ...]]:
    """The calls of all runs that correspond to each other.

    Raises:
        UnlikeRunsError: If the runs do not have as many of the same form.
    """
    forms = [[call.form for call in run] for run in runs]
    if any(form != forms[0] for form in forms[1:]):
        raise UnlikeRunsError(f"{' and '.join(str(len(form)) for form in forms)} matrix products")
    return list(zip(*runs, strict=True))
