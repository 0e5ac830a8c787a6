"""Ceilings of the GPU: a real probe of a few points, and a file that forecasts read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.gpu.ceilings import (
    best_matmul,
    config_home,
    device_of,
    effort_for,
    measure,
    shapes_of_models,
)
from benchmarks.gpu.command import Asked
from search_spaces.hardware.catalogue import find_device, known_device, load_device_file


@pytest.mark.thorough
@pytest.mark.slow
def test_a_probe_is_a_device_file_that_forecasts_find(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = measure(asked)

    shapes = effort_for(asked).shapes
    rates = {(r["precision"], r["rows"], r["columns"], r["inner"]): r for r in found.rows}
    assert set(rates) == {(name, *shape) for name in ("fp32", "bf16") for shape in shapes}
    for (_, rows, columns, inner), row in rates.items():
        flops = row["tflops_per_second"] * 1e12 * row["seconds"]
        assert flops == pytest.approx(2 * rows * columns * inner)
    assert found.figures["launch_seconds"] > 0
    assert found.figures["copy_bytes_per_second"] > 1e8
    assert [verdict.holds for verdict in found.verdicts] == [True]

    (device,) = load_device_file(asked.out / "device.yaml")
    assert device_of(asked, "whatever") == device
    with config_home(asked) as home:
        monkeypatch.setenv("XDG_CONFIG_HOME", home["XDG_CONFIG_HOME"])
        assert find_device(device.name) == device


def test_without_a_file_the_catalogue_is_asked(asked: Asked) -> None:
    assert device_of(asked, "NVIDIA H100 80GB HBM3") == known_device("cpu")  # tiny: on a CPU
    real = replace(asked, tiny=False)
    assert device_of(real, "NVIDIA H100 80GB HBM3") == known_device("H100-80-SXM")


def test_the_best_matmul_is_that_of_its_precision() -> None:
    points = (("bf16", 8, 8, 8, 5e14), ("bf16", 9, 8, 8, 7e14), ("fp32", 8, 8, 8, 9e14))
    device = replace(known_device("H100-80-SXM"), matmul_points=points)

    assert best_matmul(device) == 7e14
    assert best_matmul(device, "fp32") == 9e14
    assert best_matmul(known_device("H100-80-SXM")) == device.bf16_flops_per_second


def test_shapes_are_those_of_the_models() -> None:
    shapes = set(shapes_of_models())

    assert (8192, 8192, 3072) in shapes  # Llama-3.2 3B: up of its feed-forward, 8192 tokens
    assert (2048, 50257, 1600) in shapes  # GPT-2 XL: its head
    assert len(shapes) == 3 * 17
