"""`plimsoll doctor`: what this machine can do, and how to mend what it cannot."""

from __future__ import annotations

import datetime
import os
import platform
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.table import Table
from rich.text import Text

from orchestrator.cli.console import page, say
from orchestrator.cli.device_words import device_rows
from orchestrator.fingerprint import package_versions
from search_spaces.errors import UserError
from search_spaces.extras import OPTIONAL_PACKAGES, extra_lack
from search_spaces.hardware import Device, device_to_yaml, user_folder
from search_spaces.spec.schema import GIB

_LOOK_SECONDS = 0.5
_BUSY_PERCENT = 20
_Probe = Annotated[
    bool, typer.Option("--probe", help="Measure this machine and write a device file.")
]
_Out = Annotated[
    Path | None,
    typer.Option(help="The device file to write, instead of one where `plan` finds it."),
]
_Drive = Annotated[
    Path | None,
    typer.Option(help="A folder on the drive to measure; without it, the current one."),
]


def doctor(probe: _Probe = False, out: _Out = None, drive: _Drive = None) -> None:
    """Say what this machine can do: devices, memory, packages, and what each knob needs."""
    if probe:
        _probe(out, drive or Path())
    elif out or drive:
        raise UserError("--out and --drive say how to measure; add --probe")
    else:
        _survey()


def _survey() -> None:
    from workers.doctor import cuda_devices, survey

    devices = cuda_devices()
    memory = psutil.virtual_memory()
    say(
        f"{platform.system()} {platform.release()}, Python {platform.python_version()},"
        f" {os.cpu_count()} CPU cores, {memory.total / GIB:.0f} GiB memory"
        f" ({memory.available / GIB:.0f} GiB free)"
    )
    for index, device in enumerate(devices):
        say(f"cuda:{index} {device}")
    if not devices:
        say("no CUDA device: ranks train on the CPU, over gloo")
    say(", ".join(f"{name} {version}" for name, version in package_versions()))
    say("")
    table = Table(box=None, pad_edge=False)
    table.add_column("feature", no_wrap=True)
    table.add_column("for")
    table.add_column("here")
    features = survey("cuda" if devices else "cpu")
    for feature in features:
        table.add_row(feature.name, feature.serves, _here(feature.lack))
    shown = {feature.serves for feature in features}
    for package in OPTIONAL_PACKAGES:
        if package.serves not in shown:
            table.add_row(package.module, package.serves, _here(extra_lack(package.module)))
    page().print(table)


def _here(lack: str | None) -> Text:
    return Text("yes", "green") if lack is None else Text(lack, "yellow")


def _probe(out: Path | None, drive: Path) -> None:
    from workers.probing import describe, probe_ranks, usual_effort

    busy = psutil.cpu_percent(interval=_LOOK_SECONDS)
    if busy > _BUSY_PERCENT:
        say(f"other programs use {busy:.0f} % of the CPU: the figures will be low", style="yellow")
    effort = usual_effort()
    say(f"measuring with {effort.ranks} ranks on {effort.device_type}, which takes up to a minute")
    found = describe(
        probe_ranks(effort, drive=drive), effort, when=datetime.date.today().isoformat()
    )
    table = Table(box=None, pad_edge=False)
    for heading in (found.name, "measured", "at"):
        table.add_column(heading)
    for row in device_rows(found):
        table.add_row(*row)
    page().print(table)
    path = out or user_folder() / f"{found.name.replace('/', '-').replace(' ', '-')}.yaml"
    _write(path, found)
    say(f"written to {path}")
    if out is None:
        say("forecasts for this device now start from these figures; delete the file to undo that")


def _write(path: Path, device: Device) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(device_to_yaml(device), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None
