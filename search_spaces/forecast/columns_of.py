"""The columns of cases and plans, from a footprint and a device."""

from __future__ import annotations

import numpy as np

from search_spaces.footprint import Footprint, Part, Variant
from search_spaces.forecast.columns import ARCHITECTURES, CaseColumns, PartBytes, RowColumns
from search_spaces.forecast.entries import mean_part
from search_spaces.forecast.executions import PRECISIONS, Counts, Executions, Numbers
from search_spaces.hardware import Device

TERA = 1e12


def row_columns(
    footprint: Footprint, device: Device, executions: Executions, case: Counts
) -> RowColumns:
    """A row for each plan, whose case is given."""
    names = (
        "block_trained",
        "block_frozen",
        "embedding_trained",
        "embedding_frozen",
        "head_trained",
        "head_frozen",
        "largest_weight",
    )
    count = len(executions)
    found = {name: np.zeros(count) for name in names}
    for number, variant in enumerate(footprint.variants):
        at = executions.variant == number
        if not at.any():
            continue
        tensor = executions.tensor[at].astype(float)
        for name, value in _parameters(variant, footprint.depth, tensor).items():
            found[name][at] = value
    peaks = _peaks(device)
    constants = {
        "depth": footprint.depth,
        "tokens": footprint.mean_tokens,
        "bandwidth": device.bandwidth_bytes_per_second,
        "link": device.link_bytes_per_second,
        "slow_link": device.link_kind == "pcie",
        "network": device.network_bytes_per_second,
        "node_devices": device.node_devices,
        "pcie": device.pcie_bytes_per_second,
        "host_bandwidth": device.host_bandwidth_bytes_per_second,
        "nvme": 2
        / (1 / device.nvme_read_bytes_per_second + 1 / device.nvme_write_bytes_per_second),
        "device_bytes": device.memory_bytes,
        "context_bytes": device.context_bytes,
        "measured": device.measured,
        "collective_seconds": _small_collective(device),
        "on_cpu": device.architecture == "cpu",
    }
    # tied weights are split as the head is
    held = found["head_trained"] + found["head_frozen"]
    return RowColumns(
        case=case,
        tied=np.minimum(float(footprint.tied_parameters), held),
        peak_flops=peaks[executions.precision],
        **found,
        **{name: np.full(count, float(value)) for name, value in constants.items()},
    )


def _parameters(variant: Variant, depth: int, tensor: Numbers) -> dict[str, Numbers]:
    def of(part: Part, name: str) -> Numbers:
        amount: Numbers = np.broadcast_to(getattr(part, name).at(0.0, tensor), tensor.shape)
        return amount

    blocks = mean_part(variant, depth) if depth else ()
    parts = [variant.embedding, variant.head, *(part for _, part in blocks)]
    largest = max(part.largest_weight for part in parts)
    zero = np.zeros(len(tensor))
    return {
        "block_trained": sum((share * of(part, "trained") for share, part in blocks), zero),
        "block_frozen": sum((share * of(part, "frozen") for share, part in blocks), zero),
        "embedding_trained": of(variant.embedding, "trained"),
        "embedding_frozen": of(variant.embedding, "frozen"),
        "head_trained": of(variant.head, "trained"),
        "head_frozen": of(variant.head, "frozen"),
        "largest_weight": np.full(len(tensor), largest) / tensor,
    }


def case_columns(device: Device, cases: Executions) -> CaseColumns:
    """A row for each case, of which a plan is given."""
    count = len(cases)
    tensor = cases.tensor.astype(float)
    inside = tensor <= device.node_devices
    local = np.minimum(tensor, device.node_devices)
    across = np.minimum(device.link_bytes_per_second, device.network_bytes_per_second * local)
    return CaseColumns(
        peak_flops=_peaks(device)[cases.precision],
        attention_flops=_peaks(device)[np.minimum(cases.precision, PRECISIONS.index("bf16"))],
        bandwidth=np.full(count, device.bandwidth_bytes_per_second),
        multiprocessors=np.full(count, float(device.multiprocessors)),
        launch_seconds=np.full(count, device.launch_seconds),
        architecture=np.full(count, ARCHITECTURES.index(device.architecture)),
        tensor=tensor,
        tensor_link=np.where(inside, device.link_bytes_per_second, across),
        slow_link=np.full(count, float(device.link_kind == "pcie")),
        watts_per_teraflops=device.power_watts / _peaks(device)[cases.precision] * TERA,
        tensor_latency=np.where(inside, 1.0, 2.0) * np.log2(np.maximum(tensor, 1.0)),
        measured=np.full(count, float(device.measured)),
        collective_seconds=np.full(count, _small_collective(device)),
        on_cpu=np.full(count, float(device.architecture == "cpu")),
        compiled=cases.compiled.astype(float),
        fused=cases.fused.astype(float),
        sixteen_bits=(cases.precision >= PRECISIONS.index("fp16")).astype(float),
    )


def _small_collective(device: Device) -> float:
    """Seconds of the shortest collectives that were measured, 0 where none was."""
    least = min((point[2] for point in device.collective_points), default=0)
    shortest = [point[3] for point in device.collective_points if point[2] == least]
    return float(np.mean(shortest)) if shortest else 0.0


def _peaks(device: Device) -> Numbers:
    """Peaks in the order of `PRECISIONS`; one without units of its own has that of fp32.

    They are dense ones of a data sheet, or the best that was measured of any shape.
    """
    found = []
    for name in PRECISIONS:
        measured = [point[-1] for point in device.matmul_points if point[0] == name]
        found.append(max(measured, default=device.peak_flops_per_second(name)))
    peaks = np.array(found)
    known: Numbers = np.where(peaks > 0, peaks, peaks[0])
    return known


def part_bytes(variant: Variant, depth: int, micro_batch: Numbers, tensor: Numbers) -> PartBytes:
    """What parts hold, a row for each micro-batch and tensor degree."""

    def of(part: Part, *names: str) -> Numbers:
        value: object = part
        for name in names:
            value = getattr(value, name)
        amount: Numbers = np.broadcast_to(value.at(micro_batch, tensor), micro_batch.shape)  # type: ignore[attr-defined]
        return amount

    def mean(*names: str) -> Numbers:
        zero = np.zeros(len(micro_batch))
        return sum((share * of(part, *names) for share, part in mean_part(variant, depth)), zero)

    def most(*names: str) -> Numbers:
        zero = np.zeros(len(micro_batch))
        fullest: Numbers = np.max(
            [zero, *(of(kind.part, *names) for kind in variant.blocks)], axis=0
        )
        return fullest

    blocks = mean_part(variant, depth) if depth else ()
    zero = np.zeros(len(micro_batch))
    copies = sum((share * part.saved_bytes.at(0.0, tensor) for share, part in blocks), zero)
    return PartBytes(
        embedding_saved=of(variant.embedding, "saved_bytes"),
        block_saved=mean("saved_bytes"),
        block_copies=copies,
        block_kept=mean("kept_bytes"),
        block_input=mean("input_bytes"),
        head_saved=of(variant.head, "saved_bytes"),
        block_forward_transient=most("forward", "transient_bytes"),
        block_backward_transient=most("backward", "transient_bytes"),
        head_forward_transient=of(variant.head, "forward", "transient_bytes"),
        head_backward_transient=of(variant.head, "backward", "transient_bytes"),
    )
