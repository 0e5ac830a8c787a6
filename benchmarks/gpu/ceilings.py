"""Ceilings of the GPU: matmuls by shape, copies, the bus, attention, the host's launches.

Rates of `plimsoll doctor --probe`, with the shapes of the models that all steps train, are written
as a device file, `device.yaml`, from which all other steps forecast.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.gpu import kernels
from benchmarks.gpu.cases import LLAMA_1B
from benchmarks.gpu.run import Run, apart
from search_spaces.hardware.catalogue import known_device, load_device_file
from search_spaces.hardware.device import BlockLaunches, Device
from search_spaces.hardware.files import device_to_yaml
from search_spaces.safety.files import MIB
from workers.probe.block import block_launches
from workers.probe.config import ProbeConfig, Shape, default_config
from workers.probe.device import describe
from workers.probe.rank import probe_ranks

FILE = "device.yaml"
_TOKENS = 8192  # of a micro-batch
_LAYERS = (  # columns and inner dimension of what the models multiply most
    (1600, 1600), (4800, 1600), (6400, 1600), (1600, 6400), (50257, 1600),
    (2048, 2048), (8192, 2048), (2048, 8192), (128256, 2048),
    (3072, 3072), (8192, 3072), (3072, 8192), (128256, 3072),
)  # fmt: skip
_TINY_SHAPES: tuple[Shape, ...] = ((64, 64, 64), (128, 64, 64), (128, 256, 64))


def effort_for(*, tiny: bool) -> ProbeConfig:
    """Returns what the probe measures on one rank: the models' shapes, in what sweeps search."""
    shapes = ((8192, 8192, 8192), *shapes_of_models())
    effort = dataclasses.replace(default_config(), ranks=1, shapes=shapes, file_seconds=1.0)
    if not tiny:
        return dataclasses.replace(effort, precisions=("fp32", "bf16"), point_seconds=0.1)
    return dataclasses.replace(
        effort,
        threads=1,
        shapes=_TINY_SHAPES,
        point_seconds=0.01,
        matmul_seconds=0.01,
        compiles=False,
        copy_bytes=4 * MIB,
        file_bytes=MIB,
    )


def shapes_of_models() -> Iterator[Shape]:
    """Rows, columns and inner dimension of the models' matmuls."""
    return ((_TOKENS, *layer) for layer in _LAYERS)


def measure(run: Run) -> None:
    """Measures the host's time per launch, the device, and what it sustains."""
    for name, arenas in (("usual arenas", None), ("one arena", "1")):
        item = f"launches, {name}"
        if not run.has(item):
            launches = apart(launches_of, run.tiny, environment={"MALLOC_ARENA_MAX": arenas})
            run.write(item, dataclasses.asdict(launches))
    if not run.has("device"):
        _probe(run)
    kernels.measure(run, _TINY_SHAPES if run.tiny else tuple(shapes_of_models()))


def launches_of(tiny: bool) -> BlockLaunches:
    """The host's seconds per operator of a block of Llama, in this process."""
    spec = LLAMA_1B.spec(tiny=tiny)
    device = torch.device(spec.cluster.device)
    seconds = 0.05 if tiny else 2.0
    return block_launches(spec.model, spec.train, device, seconds=seconds, compiles=False)


def _probe(run: Run) -> None:
    effort = effort_for(tiny=run.tiny)
    with TemporaryDirectory(dir=run.out) as drive:
        result = probe_ranks(effort, drive=Path(drive))
    device = describe(result, effort)
    (run.out / FILE).write_text(device_to_yaml(device), "utf-8")
    run.write("device", dataclasses.asdict(result))


def device_of(out: Path, name: str) -> Device:
    """Returns the device of forecasts: the folder's measured file, else the catalogue's.

    Raises:
        DeviceError: If there is no file and nobody knows the device.
        SpecError: If the file has faults.
    """
    file = out / FILE
    if file.exists():
        return load_device_file(file)[0]
    return known_device(name)
