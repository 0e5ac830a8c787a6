"""Estimates of devices that the catalogue lacks, from the properties that CUDA reports."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from search_spaces.hardware.catalogue import find_device, known_device
from search_spaces.hardware.device import Device
from search_spaces.hardware.names import DeviceError

_TRANSFERS = 2  # of a memory bus per clock: CUDA reports the clock of double data rate
_BF16, FIRST_WITH_FP8 = (8, 0), (8, 9)  # compute capabilities since which tensor cores have them
# By compute capability: a device like it, FLOPs of an SM per clock in fp16 and in fp32, dense and
# with fp32 accumulation. A higher one counts as the nearest below.
_SMS: Mapping[tuple[int, int], tuple[str, int, int]] = {
    (7, 0): ("V100-16-PCIe", 1024, 128),
    (7, 5): ("T4", 1024, 128),
    (8, 0): ("A100-80-PCIe", 2048, 128),
    (8, 6): ("A40", 1024, 256),
    (8, 9): ("L40S", 1024, 256),
    (9, 0): ("H100-80-PCIe", 4096, 256),
    (10, 0): ("B200", 8192, 256),
    (12, 0): ("RTX PRO 6000", 1024, 256),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProperties:
    """Properties of a GPU that CUDA reports; clocks are the highest, in hertz."""

    compute_capability: tuple[int, int]
    multiprocessors: int
    clock_hertz: float
    memory_clock_hertz: float
    memory_bus_bits: int


def find_or_estimate_device(
    name: str, memory_bytes: int, properties: DeviceProperties | None
) -> Device:
    """Returns the device with a name, or else one estimated from its properties.

    Peaks are SMs times clock times what an SM of this compute capability does per clock; within 9 %
    of the data sheets of V100 to B200. GeForce cards do half in 16 bits with fp32 accumulation.
    Bandwidth is clock times width of the memory bus. All else is that of a device like it.

    Args:
        name: Name as the driver writes it.
        memory_bytes: Total memory.
        properties: None if unknown: only the name counts.

    Raises:
        DeviceError: If the name is unknown, and the properties are too or of a GPU without tensor
            cores.
        SpecError: If a device file of the user has faults.

    Source:
        Throughput of tensor and CUDA cores per SM and clock: NVIDIA's architecture whitepapers
        (V100, Turing, A100, GA102, Ada, H100, RTX Blackwell); B200: its data sheet.
    """
    try:
        return find_device(name)
    except DeviceError:
        below = [one for one in _SMS if properties and one <= properties.compute_capability]
        if properties is None or not below:
            raise
    base_name, fp16_flops, fp32_flops = _SMS[max(below)]
    base = known_device(base_name)
    clocks = properties.multiprocessors * properties.clock_hertz
    fp16 = clocks * fp16_flops / (2 if "geforce" in name.casefold() else 1)
    return replace(
        base,
        name=name,
        aliases=(),
        memory_bytes=memory_bytes,
        multiprocessors=properties.multiprocessors,
        fp32_flops_per_second=clocks * fp32_flops,
        tf32_flops_per_second=fp16 / 2 if max(below) >= _BF16 else 0.0,
        fp16_flops_per_second=fp16,
        bf16_flops_per_second=fp16 if max(below) >= _BF16 else 0.0,
        fp8_flops_per_second=2 * fp16 if max(below) >= FIRST_WITH_FP8 else 0.0,
        bandwidth_bytes_per_second=(
            _TRANSFERS * properties.memory_clock_hertz * properties.memory_bus_bits / 8
        ),
        power_watts=base.power_watts * properties.multiprocessors / base.multiprocessors,
        estimated=True,
    )
