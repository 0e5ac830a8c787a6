"""Device files: YAML to `Device` and back, with all faults of a file at once."""

import dataclasses
import difflib
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from search_spaces.errors import Fault, SpecError
from search_spaces.hardware.device import Device
from search_spaces.hardware.names import DeviceError
from search_spaces.specification.error_messages import format_value, schema_faults
from search_spaces.specification.yaml_reader import SpecDumper, read_tree

_LARGE = 1e6
FIELDS = tuple(field.name for field in dataclasses.fields(Device))
REQUIRED = tuple(
    field.name
    for field in dataclasses.fields(Device)
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
)
Entry = dict[str, Any]  # a device in a file
Lookup = Callable[[str], Device]


def read_devices(text: str, *, source: str, lookup: Lookup) -> tuple[Device, ...]:
    """Reads the devices in YAML text.

    The text holds one device, or a list of them under `devices`. With `based_on`, a device inherits
    missing keys from another device, which comes earlier in the text or from `lookup`.

    Args:
        text: YAML text.
        source: Name of the text in messages.
        lookup: Returns a device by name, or raises `DeviceError`.

    Raises:
        SpecError: If the text has faults; holds all of them.
    """
    if not text.strip():
        advice = f"is empty; a device needs {', '.join(REQUIRED)}, or `based_on` and changed keys"
        raise SpecError(source, (Fault(path="file", advice=advice),))
    tree, syntax_faults = read_tree(text)
    faults = list(syntax_faults)
    devices: dict[str, Device] = {}
    for path, entry in _entries(tree or {}, faults):
        faults += _source_faults(entry.pop("sources", None), f"{path}sources")
        whole, complete = _merged(entry, path, devices, lookup, faults)
        reported = {fault.path for fault in faults}
        entry_faults = _entry_faults(whole, path, complete=complete)
        faults += [fault for fault in entry_faults if fault.path not in reported]
        if not faults:
            device = Device(**whole)
            devices[device.name] = device
    if faults:
        raise SpecError(source, tuple(faults))
    return tuple(devices.values())


def device_to_yaml(device: Device) -> str:
    """Writes a device as YAML that `read_devices` reads back, without unset fields."""
    tree: Entry = {}
    for name in FIELDS:
        value = getattr(device, name)
        if name in REQUIRED or value not in (None, (), False):
            tree[name] = to_jsonable_python(value)  # with lists in place of tuples
    return yaml.dump(
        tree,
        Dumper=_DeviceDumper,
        sort_keys=False,
        allow_unicode=False,
        default_flow_style=None,  # one line per point
        width=100,
    )


class _DeviceDumper(SpecDumper):
    """Writes large numbers in a readable form: 9.89E+14."""


def _represent_float(dumper: _DeviceDumper, value: float) -> yaml.Node:
    exact = Decimal(repr(value)).normalize() if value >= _LARGE else repr(value)
    return dumper.represent_scalar("tag:yaml.org,2002:float", str(exact))


_DeviceDumper.add_representer(float, _represent_float)


def _entries(tree: Entry, faults: list[Fault]) -> Iterator[tuple[str, Entry]]:
    if "devices" not in tree:
        if tree:
            yield "", tree
        return
    for key in tree:
        if key != "devices":
            advice = "is not allowed next to `devices`; put a device's keys in its own entry"
            faults.append(_fault(key, None, advice))
    listed = tree["devices"]
    if not isinstance(listed, list) or not listed:
        faults.append(_fault("devices", listed, "must be a list"))
        return
    for index, entry in enumerate(listed):
        path = f"devices[{index}]"
        if isinstance(entry, dict):
            yield f"{path}.", entry
        else:
            faults.append(_fault(path, entry, "must be a section of keys and values"))


def _fault(path: str, value: Any, advice: str) -> Fault:
    return Fault(path=path, value=format_value(value), advice=advice)


def _source_faults(sources: Any, path: str) -> Iterator[Fault]:
    """Yields the faults of the sources of a device's numbers, which are for readers of the file."""
    if not isinstance(sources, dict | None):
        yield _fault(path, sources, "must be a section of texts, each with the keys it covers")
        return
    for source, fields in (sources or {}).items():
        for field in fields if isinstance(fields, list) else [fields]:
            if field not in FIELDS:
                yield _fault(f"{path}.{source}", field, "is not a field of a device")


def _merged(
    entry: Entry, path: str, earlier: Mapping[str, Device], lookup: Lookup, faults: list[Fault]
) -> tuple[Entry, bool]:
    """Merges an entry with the device that it is based on.

    Aliases are inherited only if the entry also keeps the name.

    Returns:
        The merged entry, and False if its base was not found.
    """
    own = {key: value for key, value in entry.items() if key != "based_on"}
    base_name = entry.get("based_on")
    if base_name is None:
        return own, True
    if not isinstance(base_name, str):
        faults.append(_fault(f"{path}based_on", base_name, "must be the name of a device"))
        return own, False
    try:
        base = earlier.get(base_name) or lookup(base_name)
    except DeviceError as error:
        if not faults:  # otherwise the base may be an earlier entry with faults
            faults.append(_fault(f"{path}based_on", base_name, str(error)))
        return own, False
    whole = {name: getattr(base, name) for name in FIELDS if getattr(base, name) is not None}
    if own.setdefault("name", base.name) != base.name:
        whole["aliases"] = ()
    return {**whole, **own}, True


def _entry_faults(whole: Entry, path: str, *, complete: bool) -> Iterator[Fault]:
    """Yields the faults of a device; it may lack keys unless it is `complete`."""
    try:
        Device(**whole)
    except ValidationError as error:
        kinds = {str(detail["loc"][0]): detail["type"] for detail in error.errors()}
        for fault in schema_faults(error):
            kind, advice = kinds.get(fault.path), fault.advice
            if kind == "missing":
                advice = "is missing; use `based_on: NAME` to take missing keys from a known device"
            elif kind == "unexpected_keyword_argument":
                near = difflib.get_close_matches(fault.path, FIELDS, n=1)
                hint = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(FIELDS)}"
                advice = f"no such key; {hint}"
            if complete or kind != "missing":
                yield dataclasses.replace(fault, path=f"{path}{fault.path}", advice=advice)
