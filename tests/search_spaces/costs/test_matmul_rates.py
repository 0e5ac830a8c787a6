"""Rates of any shape, from the 27 shapes that were measured on an H200."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from search_spaces.costs.matmul_rates import alignment, matmul_rates
from search_spaces.hardware.catalogue import load_device_file
from search_spaces.hardware.device import MatmulPoint

_FILE = Path(__file__).parents[3] / "benchmarks" / "results" / "gpu" / "h200" / "device.yaml"
(H200,) = load_device_file(_FILE)
POINTS = H200.matmul_points
BF16 = [point for point in POINTS if point[0] == "bf16"]


def rate(
    rows: float, columns: float, inner: float, points: Sequence[MatmulPoint] = POINTS
) -> float:
    found = matmul_rates(points, "bf16", rows, columns, inner)
    assert found is not None
    return float(found)


def test_a_measured_aligned_shape_has_its_rate_and_an_odd_one_too() -> None:
    for _, rows, columns, inner, measured in BF16:
        assert rate(rows, columns, inner) == pytest.approx(measured, rel=1e-6)


def test_shapes_between_and_beyond_the_measured_ones() -> None:
    between = rate(8192, 2560, 2560)
    assert 6.3e14 < between < 6.75e14  # mostly that of 2048 and 3072 square
    assert rate(1 << 20, 128256, 2048) == pytest.approx(rate(16384, 128256, 2048))


def test_shapes_left_out_in_turn_are_met_within_five_percent() -> None:
    large = [p for p in BF16 if min(p[1:4]) >= 1024 and alignment(*p[2:4]) == 8]
    errors = [
        rate(*left_out[1:4], points=[point for point in BF16 if point != left_out]) / left_out[4]
        - 1
        for left_out in large
    ]

    assert len(errors) == 22
    assert np.median(np.abs(errors)) < 0.05


def test_an_odd_width_is_as_much_slower_as_the_measured_odd_widths() -> None:
    assert rate(8192, 50257, 2048) < 0.25 * rate(8192, 50304, 2048)
    assert rate(8191, 2048, 2048) > 6e14  # an odd number of tokens costs nothing
    fp32 = matmul_rates(POINTS, "fp32", 8192, np.array([50257, 50304]), 1600)
    assert fp32 is not None
    assert fp32[0] == pytest.approx(fp32[1], rel=0.1)  # no tensor cores, no slowdown


def test_alignments_that_were_not_measured_and_precisions() -> None:
    assert alignment(50257, 1600) == 1
    assert alignment(30522, 1024) == 2
    assert alignment(np.array([12, 16]), 4096).tolist() == [4, 8]
    assert rate(8192, 30524, 1024) == pytest.approx(rate(8192, 30522, 1024), rel=0.01)
    assert matmul_rates(POINTS, "fp8", 8192, 8192, 8192) is None
