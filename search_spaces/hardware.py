"""What devices can do at most, from their makers' data sheets."""

from __future__ import annotations

import re
from dataclasses import dataclass

from search_spaces.plan import Precision

TERA = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePeaks:
    """Dense peaks of one device in FLOP/s, without sparsity.

    `pattern` is a part of the name that the driver reports; fp32 is what PyTorch uses by
    default, which is not TF32.
    """

    pattern: str
    bf16: float
    fp32: float
    source: str


# The more special pattern stands first: the first that matches counts.
DEVICES: tuple[DevicePeaks, ...] = (
    DevicePeaks(
        pattern="B200", bf16=2250 * TERA, fp32=75 * TERA, source="NVIDIA DGX B200 data sheet, 2024"
    ),
    DevicePeaks(
        pattern="GH200", bf16=989 * TERA, fp32=67 * TERA, source="NVIDIA GH200 data sheet, 2024"
    ),
    DevicePeaks(
        pattern="H200", bf16=989 * TERA, fp32=67 * TERA, source="NVIDIA H200 data sheet, 2024"
    ),
    DevicePeaks(
        pattern="H100 PCIe", bf16=756 * TERA, fp32=51 * TERA, source="NVIDIA H100 data sheet, 2023"
    ),
    DevicePeaks(
        pattern="H100", bf16=989 * TERA, fp32=67 * TERA, source="NVIDIA H100 data sheet, 2023"
    ),
    DevicePeaks(
        pattern="A100", bf16=312 * TERA, fp32=19.5 * TERA, source="NVIDIA A100 data sheet, 2021"
    ),
    DevicePeaks(
        pattern="A10G", bf16=70 * TERA, fp32=35 * TERA, source="NVIDIA A10G data sheet, 2021"
    ),
    DevicePeaks(
        pattern="L40S", bf16=362 * TERA, fp32=91.6 * TERA, source="NVIDIA L40S data sheet, 2023"
    ),
    DevicePeaks(
        pattern="L4", bf16=121 * TERA, fp32=30.3 * TERA, source="NVIDIA L4 data sheet, 2023"
    ),
    DevicePeaks(
        pattern="RTX 4090",
        bf16=165.2 * TERA,
        fp32=82.6 * TERA,
        source="NVIDIA Ada GPU architecture whitepaper v2.01, appendix A",
    ),
    DevicePeaks(
        pattern="RTX 3090",
        bf16=71 * TERA,
        fp32=35.6 * TERA,
        source="NVIDIA GA102 GPU architecture whitepaper v2.1, table 9",
    ),
)


def dense_peak_flops(device_name: str, precision: Precision) -> float | None:
    """The dense peak of a device in FLOP/s, None if the device is not in the table."""
    for device in DEVICES:
        if re.search(rf"\b{re.escape(device.pattern)}\b", device_name):  # an L40 is no L4
            return device.bf16 if precision == "bf16" else device.fp32
    return None
