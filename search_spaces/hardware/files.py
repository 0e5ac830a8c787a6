"""Device files: YAML to `Device` and back, or every fault in a file at once."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from search_spaces.errors import Fault, SpecError
from search_spaces.hardware.device import Device
from search_spaces.hardware.names import DeviceError
from search_spaces.spec.error_messages import schema_faults, shown
from search_spaces.spec.yaml_reader import SpecDumper, read_tree

MAX_FILE_BYTES = 2**20  # a device is a page of text; more is the wrong file
_LARGE = 1e6
FIELDS = tuple(field.name for field in dataclasses.fields(Device))
REQUIRED = tuple(
    field.name
    for field in dataclasses.fields(Device)
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
)
Entry = dict[str, Any]  # what a file says of one device
Lookup = Callable[[str], Device]


def read_devices(text: str, *, source: str, lookup: Lookup) -> tuple[Device, ...]:
    """The devices in a YAML text.

    A text holds one device, or under `devices` a list of them. With `based_on` a device takes
    what it does not say from another, of the same text above it or one that `lookup` finds.

    Raises:
        SpecError: If the text has faults; holds all of them.
    """
    if not text.strip():
        advice = f"is empty; a device needs {', '.join(REQUIRED)}, or `based_on` and what differs"
        raise SpecError(source, (Fault(path="file", value="", advice=advice),))
    tree, known_faults = read_tree(text)
    faults = list(known_faults)
    found: dict[str, Device] = {}
    for path, entry in _entries(tree or {}, faults):
        whole, complete = _merged(entry, path, found, lookup, faults)
        wrong = [*_key_faults(whole, path), *_type_faults(whole, path)]
        if complete:
            wrong += _missing_faults(whole, path)
        faults += [fault for fault in wrong if fault.path not in {known.path for known in faults}]
        if not faults:
            device = _validator().validate_python(_with_tuples(whole))
            found[device.name] = device
    if faults:
        raise SpecError(source, tuple(faults))
    return tuple(found.values())


def device_to_yaml(device: Device) -> str:
    """A device as YAML that `read_devices` reads back; what is not said is left out."""
    tree: Entry = {}
    for field in dataclasses.fields(device):
        value = getattr(device, field.name)
        if field.name in REQUIRED or value not in (None, (), False):
            tree[field.name] = value
    tree["sources"] = {source: list(fields) for source, fields in device.sources}
    for name in ("aliases", "matmul_points", "collective_points"):
        if name in tree:
            tree[name] = [list(row) if isinstance(row, tuple) else row for row in tree[name]]
    return yaml.dump(
        {name: value for name, value in tree.items() if value != {}},
        Dumper=_DeviceDumper,
        sort_keys=False,
        allow_unicode=False,
        default_flow_style=None,  # points in one line each
        width=100,
    )


class _DeviceDumper(SpecDumper):
    """Large numbers as people read them: 9.89E+14."""


def _represent_float(dumper: _DeviceDumper, value: float) -> yaml.Node:
    exact = Decimal(repr(value)).normalize() if value >= _LARGE else repr(value)
    return dumper.represent_scalar("tag:yaml.org,2002:float", str(exact))


_DeviceDumper.add_representer(float, _represent_float)


@cache
def _validator() -> TypeAdapter[Device]:
    return TypeAdapter(Device)


def _entries(tree: Entry, faults: list[Fault]) -> Iterator[tuple[str, Entry]]:
    if "devices" not in tree:
        if tree:
            yield "", tree
        return
    for key in tree:
        if key != "devices":
            advice = "stands beside `devices`; each device's keys stand in its own entry"
            faults.append(Fault(path=key, value="", advice=advice))
    listed = tree["devices"]
    if not isinstance(listed, list) or not listed:
        faults.append(Fault(path="devices", value=shown(listed), advice="must be a list"))
        return
    for index, entry in enumerate(listed):
        path = f"devices[{index}]"
        if isinstance(entry, dict):
            yield f"{path}.", entry
        else:
            advice = "must be a section of keys and values"
            faults.append(Fault(path=path, value=shown(entry), advice=advice))


def _merged(
    entry: Entry, path: str, above: Mapping[str, Device], lookup: Lookup, faults: list[Fault]
) -> tuple[Entry, bool]:
    """An entry with what it leaves to its base, and whether that base was found.

    Aliases stay with the base unless the entry takes its name too.
    """
    own = {key: value for key, value in entry.items() if key != "based_on"}
    base_name = entry.get("based_on")
    if base_name is None:
        return own, True
    if not isinstance(base_name, str):
        advice = "must be the name of a device"
        faults.append(Fault(path=f"{path}based_on", value=shown(base_name), advice=advice))
        return own, False
    try:
        base = above.get(base_name) or lookup(base_name)
    except DeviceError as error:
        if not faults:  # or else it may be one of those above
            advice = str(error)
            faults.append(Fault(path=f"{path}based_on", value=shown(base_name), advice=advice))
        return own, False
    whole = {name: getattr(base, name) for name in FIELDS if getattr(base, name) is not None}
    del whole["sources"]
    if own.setdefault("name", base.name) != base.name:
        whole["aliases"] = ()
    return {**whole, **own, "sources": _merged_sources(own, base)}, True


def _merged_sources(own: Entry, base: Device) -> Any:
    """Sources of the base hold for numbers that the entry neither replaces nor confirms."""
    said = own.get("sources", {})
    if not isinstance(said, dict):
        return said
    listed = {
        source: fields if isinstance(fields, list) else [fields] for source, fields in said.items()
    }
    gone = {*own, *(str(field) for fields in listed.values() for field in fields)}
    for source, fields in base.sources:
        if left := [field for field in fields if field not in gone]:
            listed[source] = [*left, *listed.get(source, [])]
    return listed


def _key_faults(whole: Entry, path: str) -> Iterator[Fault]:
    for key, value in whole.items():
        if key not in FIELDS:
            near = difflib.get_close_matches(key, FIELDS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(FIELDS)}"
            yield Fault(path=f"{path}{key}", value=shown(value), advice=f"no such key; {hint}")
    sources = whole.get("sources")
    for source, fields in sources.items() if isinstance(sources, dict) else ():
        for field in fields if isinstance(fields, list) else ():
            if field not in FIELDS:
                advice = "names what is no field of a device"
                yield Fault(path=f"{path}sources.{source}", value=shown(field), advice=advice)


def _missing_faults(whole: Entry, path: str) -> Iterator[Fault]:
    for name in REQUIRED:
        if name not in whole:
            advice = "is missing; `based_on: NAME` takes what is not said from a known device"
            yield Fault(path=f"{path}{name}", value="", advice=advice)


def _type_faults(whole: Entry, path: str) -> Iterator[Fault]:
    known = {key: value for key, value in whole.items() if key in FIELDS}
    try:
        _validator().validate_python(_with_tuples(known))
    except ValidationError as error:
        missing = {name for name in REQUIRED if name not in whole}
        for fault in schema_faults(error):
            if fault.path not in missing:
                yield dataclasses.replace(fault, path=f"{path}{fault.path}")


def _with_tuples(value: Entry) -> Entry:
    """`sources` as pairs: a file maps a source to its fields, which reads best there."""
    sources = value.get("sources")
    if not isinstance(sources, dict):
        return value
    return {**value, "sources": tuple(sources.items())}


def device_file_text(path: Path) -> str:
    """The text of a device file.

    Raises:
        SpecError: If it cannot be read.
    """

    def refuse(advice: str) -> SpecError:
        return SpecError(str(path), (Fault(path="file", value="", advice=advice),))

    try:
        if path.is_file() and path.stat().st_size > MAX_FILE_BYTES:
            raise refuse("is larger than 1 MiB, which no device file is")
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise refuse("does not exist; `plimsoll doctor --probe` writes one") from None
    except UnicodeDecodeError as error:
        raise refuse(f"is not UTF-8 text (byte {error.start} is no part of any)") from None
    except OSError as error:
        raise refuse(f"cannot be read: {error.strerror or error}") from None
