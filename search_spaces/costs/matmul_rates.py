"""Rates of a device in matmuls of any shape, interpolated between those that a probe measured."""

from collections.abc import Sequence

import numpy as np

from search_spaces.costs.plan_features import Numbers
from search_spaces.hardware.device import MatmulPoint, MatmulPrecision

_NEAREST = 3  # left out in turn, an H200's shapes of 1,024 or more are met within 4 to 5 %
_ALIGNED = 8  # elements: 16 bytes in 16 bits, the unit of loads for tensor cores
_TINY = 1e-9


def alignment(*sizes: Numbers | float) -> Numbers:
    """Returns the largest power of two, up to 8, that divides all sizes of each shape.

    The sizes that count are those that follow each other in memory: features, never tokens. They
    are columns and inner dimension of a layer's forward pass and of the gradient of its input, and
    rows and columns in the gradient of its weight.

    Source:
        NVIDIA, "Matrix Multiplication Background User's Guide", section 2.2.
    """
    whole = np.broadcast_arrays(
        *(np.round(size).astype(np.int64) for size in map(np.asarray, sizes))
    )
    return np.gcd(np.gcd.reduce(whole), _ALIGNED).astype(np.float64)


def matmul_rates(
    points: Sequence[MatmulPoint],
    precision: MatmulPrecision,
    rows: Numbers | float,
    columns: Numbers | float,
    inner: Numbers | float,
) -> Numbers | None:
    """Returns the FLOP/s of a device in products of (rows x inner) times (inner x columns).

    The rate is the geometric mean of the three nearest aligned shapes, weighted by their nearness
    in the logarithms of the sizes; at a measured shape it is the measured rate. Sizes beyond the
    measured ones count as the last measured. Unaligned shapes are slower by as much as the measured
    shapes of their alignment are, or else of the next lower one, or else of the next higher one.

    Args:
        points: Of the device: see `Device.matmul_points`.
        precision: Precision of the products.
        rows: Sizes, which broadcast, as do columns and inner.
        columns: See `rows`.
        inner: See `rows`.

    Returns:
        FLOP/s of each shape; None if no shape was measured in this precision.
    """
    own = np.array([point[1:] for point in points if point[0] == precision], dtype=np.float64)
    if not own.size:
        return None
    sizes, logs = np.log2(own[:, :3]), np.log(own[:, 3])
    classes = alignment(own[:, 1], own[:, 2])
    best = classes == classes.max()
    queries = np.stack(np.broadcast_arrays(rows, columns, inner), axis=-1)
    rates = _nearest(sizes[best], logs[best], np.log2(np.maximum(queries, 1.0)))
    slowdown = logs - _nearest(sizes[best], logs[best], sizes)
    by_class = {each: float(slowdown[classes == each].mean()) for each in np.unique(classes)}
    lowest = min(by_class)

    def factor(share: float) -> float:
        return by_class[max((each for each in by_class if each <= share), default=lowest)]

    factors = np.vectorize(factor, otypes=[float])(alignment(columns, inner))
    return np.exp(rates + factors)


def _nearest(sizes: Numbers, logs: Numbers, queries: Numbers) -> Numbers:
    """Interpolates logarithms of rates, given at logarithms of sizes."""
    queries = np.clip(queries, sizes.min(axis=0), sizes.max(axis=0))
    distances = np.linalg.norm(queries[..., None, :] - sizes, axis=-1)
    order = np.argsort(distances, axis=-1, kind="stable")[..., :_NEAREST]
    weights = 1 / np.maximum(np.take_along_axis(distances, order, axis=-1), _TINY)
    return (weights * logs[order]).sum(axis=-1) / weights.sum(axis=-1)
