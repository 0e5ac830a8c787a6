"""`hardware`: the figures of the makers' data sheets, and which device a name means."""

from __future__ import annotations

import pytest

from search_spaces.hardware import DEVICES, dense_peak_flops
from search_spaces.plan import Precision


@pytest.mark.parametrize(
    ("name", "precision", "tera"),
    # names as the driver reports them; dense figures, without sparsity
    [
        ("NVIDIA A100-SXM4-80GB", "bf16", 312),
        ("NVIDIA A100 80GB PCIe", "fp32", 19.5),
        ("NVIDIA H100 80GB HBM3", "bf16", 989),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA H200", "fp32", 67),
        ("NVIDIA GH200 480GB", "bf16", 989),
        ("NVIDIA B200", "bf16", 2250),
        ("NVIDIA L4", "bf16", 121),
        ("NVIDIA L40S", "bf16", 362),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2),
        ("NVIDIA GeForce RTX 3090", "fp32", 35.6),
    ],
)
def test_a_devices_peak_is_that_of_its_data_sheet(
    name: str, precision: Precision, tera: float
) -> None:
    assert dense_peak_flops(name, precision) == tera * 1e12


@pytest.mark.parametrize(
    "name", ["", "AMD Instinct MI300X", "NVIDIA T4", "NVIDIA L40", "NVIDIA GB200"]
)
def test_nothing_is_guessed_of_a_device_that_is_not_known(name: str) -> None:
    assert dense_peak_flops(name, "bf16") is None


def test_every_figure_has_its_source_and_order() -> None:
    for device in DEVICES:
        assert "NVIDIA" in device.source
        assert device.bf16 > device.fp32 > 0


def test_a_more_special_name_stands_before_the_one_it_holds() -> None:
    for index, device in enumerate(DEVICES):
        hidden = [
            later.pattern for later in DEVICES[index + 1 :] if device.pattern in later.pattern
        ]
        assert not hidden
