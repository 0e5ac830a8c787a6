"""Costs of each part of a model in one pass: memory over time, and work in each direction."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from search_spaces.costs.footprint import Extent, Peak
from workers.tracing.operators import FusedCall, Product
from workers.tracing.recorder import EMBEDDING, HEAD, Log, Storage
from workers.tracing.step import TracedStep, WeightUse

_WHOLE_BYTES = 2  # of an element of a quantized weight, as products in 16 bits take it


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCosts:
    """The work of one part in one direction.

    `above_bytes` has, for each operator, the bytes in memory except tensors saved for backward,
    weights and their gradients.
    """

    products: tuple[Product, ...]
    attentions: tuple[FusedCall, ...]
    traffic_bytes: float
    launches: int
    exchanged_bytes: int
    exchanges: int
    above_bytes: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCosts:
    """One part in one run."""

    trained: int
    frozen: int
    quantized_bytes: float
    largest_weight: int
    saved_bytes: int
    kept_bytes: int
    input_bytes: int
    forward: PassCosts
    backward: PassCosts
    recomputed: PassCosts


def part_costs(traced: TracedStep, blocks: tuple[int, ...]) -> dict[int, PartCosts]:
    """Returns the costs of the embedding, the traced blocks and the head."""
    log = traced.log
    parts = (EMBEDDING, HEAD, *blocks)
    saved = {part: sum(s.size_bytes for s in _saved(log, part)) for part in parts}
    transient = _transient_bytes(log, saved)
    return {part: _read_part(traced, part, saved[part], transient) for part in saved}


def tied_parameters(traced: TracedStep) -> int:
    """Returns the number of parameters that the embedding and the head share."""
    return sum(weight.numbers for weight in traced.weights if len(weight.parts) > 1)


def _read_part(
    traced: TracedStep, part: int, saved_bytes: int, transient: NDArray[np.float64]
) -> PartCosts:
    log, ends = traced.log, traced.log.forward_ends
    weights = [weight for weight in traced.weights if part in weight.parts]
    packed = [weight for weight in weights if weight.packed_bytes]
    own = [index for index, operation in enumerate(log.operations) if operation.part == part]
    forward = [index for index in own if index < ends]
    recomputed = [index for index in forward if not log.operations[index].kept]
    backward = [index for index in own if index >= ends]
    return PartCosts(
        trained=sum(weight.numbers for weight in weights if weight.trains),
        frozen=sum(w.numbers for w in weights if not (w.trains or w.packed_bytes)),
        quantized_bytes=sum(weight.packed_bytes for weight in packed),
        largest_weight=max((weight.numbers for weight in weights), default=0),
        saved_bytes=saved_bytes,
        kept_bytes=sum(
            s.size_bytes
            for s in log.storages
            if s.kept and s.part == part and s.made_at < ends and s.behind is None
        ),
        input_bytes=log.hidden_bytes.get(part, 0),
        forward=_read_pass(log, forward, transient, packed),
        backward=_read_pass(log, backward, transient, packed),
        recomputed=_read_pass(log, recomputed, transient, packed),
    )


def _read_pass(
    log: Log, indices: list[int], transient: NDArray[np.float64], packed: Sequence[WeightUse]
) -> PassCosts:
    # approximate: each packed weight is read and written out, and kernels can do without
    whole = [_WHOLE_BYTES * weight.numbers for weight in packed]
    work = [log.operations[index].work for index in indices]
    return PassCosts(
        products=tuple(product for one in work for product in one.products),
        attentions=tuple(one.attention for one in work if one.attention is not None),
        traffic_bytes=sum(one.traffic_bytes for one in work)
        + sum(weight.packed_bytes for weight in packed)
        + sum(whole),
        launches=sum(one.launches for one in work) + len(whole),
        exchanged_bytes=sum(one.exchanged_bytes for one in work),
        exchanges=sum(one.exchanges for one in work),
        above_bytes=transient[indices] + max(whole, default=0),
    )


def _saved(log: Log, part: int) -> Iterable[Storage]:
    """Yields storages that a part made or received in forward, and that outlive forward."""
    ends = log.forward_ends
    return (
        storage
        for storage in log.storages
        if storage.part == part
        and storage.made_at < ends
        and (storage.gone_at is None or storage.gone_at > ends)
    )


def live_bytes(log: Log) -> NDArray[np.float64]:
    """Returns the bytes in memory at each operator, without weights and their gradients.

    Gradients that a loss computes in forward count until backward begins.
    """
    count = len(log.operations)
    change = np.zeros(count + 1)
    gradients = {id(storage) for storage in log.gradients}
    for storage in log.storages:
        gone = log.forward_ends if id(storage) in gradients else storage.gone_at
        gone = count if gone is None else gone
        if storage.made_at < gone:
            change[storage.made_at] += storage.size_bytes
            change[gone] -= storage.size_bytes
    return np.cumsum(change)[:count]


def _transient_bytes(log: Log, saved: dict[int, int]) -> NDArray[np.float64]:
    """Returns the bytes in memory at each operator, except tensors saved for backward.

    A part's tensors are saved from its first operator in forward to its last in backward.
    """
    count, ends = len(log.operations), log.forward_ends
    level = np.zeros(count)
    parts = np.array([operation.part for operation in log.operations])
    for part, size_bytes in saved.items():
        (own,) = np.nonzero(parts == part)
        first = own.min(initial=ends)
        in_backward = own[own >= ends]
        last = in_backward.max() if len(in_backward) else count
        level[first : last + 1] += size_bytes
    return live_bytes(log) - level


_DIGITS = 6  # further digits are rounding errors of the solution
# points that decide which lines make a peak
_PEAK_BATCHES = tuple(range(1, 17)) + tuple(2**power for power in range(5, 11))
_PEAK_DEGREES = (2, 4, 8, 16, 64)
Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The runs of a trace: each micro-batch at each tensor degree, degrees outermost.

    One degree means that nothing is split.
    """

    micro_batches: tuple[int, int]
    degrees: tuple[int, ...] = (1,)

    @property
    def points(self) -> tuple[tuple[int, int], ...]:
        """The micro-batch and degree of each run."""
        return tuple((batch, degree) for degree in self.degrees for batch in self.micro_batches)

    def solve(self, seen: ArrayLike) -> Numbers:
        """Returns the coefficients of `Extent` for measured values; runs are the first axis."""
        count = len(self.points)  # two if nothing is split: what a split changes is then 0
        matrix = np.array([_basis(*point)[:count] for point in self.points])
        values = np.asarray(seen, dtype=np.float64)
        solved = np.zeros((4, *values.shape[1:]))
        solved[:count] = np.linalg.solve(matrix, values.reshape(count, -1)).reshape(values.shape)
        return solved

    def extent(self, seen: Sequence[float]) -> Extent:
        """Fits one quantity to its values in each run."""
        return as_extent(self.solve(seen))

    def peak(self, seen: Sequence[Numbers]) -> Peak:
        """Fits the maximum of many affine quantities.

        Args:
            seen: Values of the quantities in each run, in the same order. If the runs have
                different numbers of them, their maximum is taken to be affine.
        """
        if len({len(one) for one in seen}) > 1:
            return Peak(lines=(self.extent([one.max(initial=0.0) for one in seen]),))
        lines = self.solve(np.stack(seen))
        if not lines.size:
            return Peak()
        degrees = _PEAK_DEGREES if len(self.degrees) > 1 else (1,)
        points = [_basis(batch, degree) for degree in degrees for batch in _PEAK_BATCHES]
        largest = dict.fromkeys(int(index) for index in (np.array(points) @ lines).argmax(axis=1))
        return Peak(lines=tuple(dict.fromkeys(as_extent(lines[:, index]) for index in largest)))


def as_extent(coefficients: Numbers) -> Extent:
    """Makes an extent of its four coefficients."""
    values = (round(float(value), _DIGITS) + 0.0 for value in coefficients)
    names = ("fixed", "per_sample", "split_fixed", "split_per_sample")
    return Extent(**dict(zip(names, values, strict=True)))


def _basis(micro_batch: int, degree: int) -> tuple[float, float, float, float]:
    return (1.0, micro_batch, 1 / degree, micro_batch / degree)
