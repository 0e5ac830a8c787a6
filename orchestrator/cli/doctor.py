"""`plimsoll doctor`: capabilities of this machine, and how to add the missing ones."""

from __future__ import annotations

import dataclasses
import datetime
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.console import print_line, table_console, write_text
from orchestrator.cli.options import Json
from orchestrator.cli.result import Result
from orchestrator.report.sections import Table
from orchestrator.report.terminal import render_table
from search_spaces.errors import OPTIONAL_PACKAGES, UserError, missing_extra
from search_spaces.hardware.catalogue import user_folder
from search_spaces.hardware.files import device_to_yaml
from search_spaces.specification.schema import GIB

if TYPE_CHECKING:
    from workers.probe.doctor import Feature

_CPU_SAMPLE_SECONDS = 0.5
_BUSY_PERCENT = 20
_Probe = Annotated[bool, typer.Option("--probe")]
_Out = Annotated[Path | None, typer.Option()]
_Drive = Annotated[Path | None, typer.Option()]


def doctor(
    probe: _Probe = False, out: _Out = None, drive: _Drive = None, as_json: Json = False
) -> Result:
    """Show this machine's devices, memory and packages, and which knobs they support."""
    if probe:
        return _probe(out, drive or Path())
    if out or drive:
        raise UserError("--out and --drive belong to a benchmark of this machine: add --probe")
    from orchestrator.host import package_versions, system_facts
    from workers.memory.device_runtime import missing_tpu
    from workers.probe.doctor import Feature, cuda_devices, survey

    devices = cuda_devices()
    features = survey("cuda" if devices else "cpu" if missing_tpu() else "tpu")
    surveyed = {feature.serves for feature in features}
    features += tuple(
        Feature(name=package.module, serves=package.serves, lack=missing_extra(package.module))
        for package in OPTIONAL_PACKAGES
        if package.serves not in surveyed
    )
    if not as_json:
        _show(devices, features)
    return Result(
        kind="doctor",
        content=lambda: {
            "system": system_facts(),
            "cuda_devices": list(devices),
            "packages": dict(package_versions()),
            "features": [dataclasses.asdict(feature) for feature in features],
        },
    )


def _show(devices: Sequence[str], features: Sequence[Feature]) -> None:
    import psutil

    from orchestrator.host import package_versions

    memory = psutil.virtual_memory()
    print_line(
        f"{platform.system()} {platform.release()}, Python {platform.python_version()},"
        f" {os.cpu_count()} CPU cores, {memory.total / GIB:.0f} GiB memory"
        f" ({memory.available / GIB:.0f} GiB free)"
    )
    for index, device in enumerate(devices):
        print_line(f"cuda:{index} {device}")
    if not devices:
        print_line("no CUDA device: ranks train on the CPU over gloo")
    print_line(", ".join(f"{name} {version}" for name, version in package_versions()))
    print_line("")
    rows = tuple((feature.name, feature.serves, feature.lack or "yes") for feature in features)
    table = Table(titles=("feature", "for", "available"), rows=rows)
    table_console().print(render_table(table))


def _probe(out: Path | None, drive: Path) -> Result:
    import psutil

    from workers.probe.config import default_config
    from workers.probe.device import describe
    from workers.probe.rank import probe_ranks

    busy = psutil.cpu_percent(interval=_CPU_SAMPLE_SECONDS)
    if busy > _BUSY_PERCENT:
        print_line(
            f"other programs use {busy:.0f} % of the CPU: the measured rates will be too low",
            style="yellow",
        )
    config = default_config()
    print_line(
        f"measuring with {config.ranks} ranks on {config.device_type}; takes one or two minutes"
    )
    device = describe(probe_ranks(config, drive=drive), config)
    if device.matmul_throttles:
        lowered = ", ".join(device.matmul_throttles)
        print_line(f"clocks were lowered while matmuls ran: {lowered}", style="yellow")
    path = out or user_folder() / f"{device.name.replace('/', '-').replace(' ', '-')}.yaml"
    head = f"# By plimsoll doctor --probe on {datetime.date.today()}; the rest is the catalogue's\n"
    write_text(path, head + device_to_yaml(device))
    print_line(f"the rates of {device.name} are in {path}")
    if out is None:
        print_line("forecasts for this device now use these rates; delete the file to undo that")
    return Result(
        kind="probe", content=lambda: {"file": str(path), "device": dataclasses.asdict(device)}
    )
