"""Error messages for specifications: pydantic's errors as faults in the user's terms."""

import difflib
import json
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from search_spaces.errors import Fault
from search_spaces.safety.files import packaged_table
from search_spaces.specification.schema import SweepSpec
from search_spaces.specification.sections import section_of

Fields = Mapping[str, FieldInfo]

MAX_SHOWN = 60  # characters of a value in a message

_WHOLE_SECTION = ("value_error", "missing")  # the value is the section: too long to show


def schema_faults(error: ValidationError) -> Iterator[Fault]:
    """Yields each fault once, in schema order; alternatives for one key are joined by "or"."""
    faults_by_path: dict[str, list[Fault]] = {}
    for detail in error.errors(include_url=False):
        for fault in _faults_of(detail):
            faults_by_path.setdefault(fault.path, []).append(fault)
    for path, faults in faults_by_path.items():
        advices = dict.fromkeys(fault.advice for fault in faults)
        joined = ", or ".join(
            advice if number == 0 else advice.removeprefix("must be ")
            for number, advice in enumerate(advices)
        )
        yield Fault(path=path, value=faults[0].value, advice=joined)


def stray_booleans(tree: Mapping[str, Any]) -> Iterator[Fault]:
    """Yields faults for booleans that the schema does not allow: pydantic reads `true` as 1."""
    yield from _strays(tree, SweepSpec.model_fields, "")


def _strays(tree: Mapping[str, Any], fields: Fields, path: str) -> Iterator[Fault]:
    for key, value in tree.items():
        field, below = fields.get(key), section_of(fields.get(key))
        if below is not None and isinstance(value, Mapping):
            yield from _strays(value, below.model_fields, f"{path}{key}.")
        elif field is not None and below is None and not _takes_booleans(field.annotation):
            yield from _booleans_in(value, f"{path}{key}")


def _takes_booleans(kind: Any) -> bool:
    return kind in (bool, Any) or any(map(_takes_booleans, get_args(kind)))


def _booleans_in(value: Any, path: str) -> Iterator[Fault]:
    if isinstance(value, bool):
        yield Fault(path=path, value=format_value(value), advice="must not be true or false")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _booleans_in(item, f"{path}[{index}]")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _booleans_in(item, f"{path}.{key}")


def format_value(value: Any) -> str:
    """Formats a value as JSON, cut to `MAX_SHOWN` characters; empty for None."""
    if value is None:
        return ""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"


def _faults_of(detail: ErrorDetails) -> Iterator[Fault]:
    location, kind = detail["loc"], detail["type"]
    path = _path(location)
    if kind == "missing":
        yield from _missing(location)
    elif kind == "extra_forbidden":
        advice = _unknown_key(location)
        yield Fault(path=path, value=format_value(detail["input"]), advice=advice)
    elif kind == "model_type":
        keys = ", ".join(_innermost(location)[1])
        name = {"model": "a name or ", "data": "files or "}.get(path, "")
        advice = f"must be {name}a section with some of the keys {keys}"
        yield Fault(path=path, value=format_value(detail["input"]), advice=advice)
    else:
        value = "" if kind in _WHOLE_SECTION else format_value(detail["input"])
        yield Fault(path=path, value=value, advice=_advice(detail, location))


def _advice(detail: ErrorDetails, location: tuple[int | str, ...]) -> str:
    kind, context = detail["type"], cast("Mapping[str, Any]", detail.get("ctx", {}))
    description = _description(location)
    if kind == "string_pattern_mismatch":
        return f"may hold only {description}"
    if kind == "tuple_type":
        value = detail["input"]
        item = format_value(value).strip('"') if isinstance(value, str | int | float) else "a, b"
        advice = f"must be a list, such as [{item}]"
    else:
        words = packaged_table(__package__, "advice.yaml").get(kind)
        known = {name: _readable(value) for name, value in context.items()}
        advice = detail["msg"] if words is None else words.format(**known)
    is_item = len(location) != _innermost(location)[0] + 1  # the description is the whole list's
    if kind in ("literal_error", "value_error") or is_item or not description:
        return advice
    return f"{advice} ({description})"


def _missing(location: tuple[int | str, ...]) -> Iterator[Fault]:
    depth, fields = _innermost(location)
    if depth < len(location):
        advice = f"is missing: {_description(location)}"
        yield Fault(path=_path(location), advice=advice)
        return
    for key, field in fields.items():
        if field.is_required():
            yield from _missing((*location, key))


def _unknown_key(location: tuple[int | str, ...]) -> str:
    key = str(location[-1])
    siblings = list(_innermost(location[:-1])[1])
    near = difflib.get_close_matches(key, siblings, n=1)
    paths = dict(_paths(SweepSpec.model_fields, ""))
    elsewhere = [path for path, name in paths.items() if name == key]
    hints = [f"did you mean {near[0]}?"] if near else []
    if elsewhere:
        hints.append(f"it exists as {' and as '.join(elsewhere)}")
    if not hints:
        close = difflib.get_close_matches(key, paths.values(), n=1)
        hints = [f"did you mean {path}?" for path, name in paths.items() if name in close]
    return "no such key; " + ("; ".join(hints) or f"the keys here are {', '.join(siblings)}")


def _readable(value: object) -> str:
    """Formats a bound, the values to choose from, or an error."""
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:g}"
    return str(value) if isinstance(value, Exception) else str(value).replace("'", "")


def _paths(fields: Fields, prefix: str) -> Iterator[tuple[str, str]]:
    for name, field in fields.items():
        if prefix:
            yield f"{prefix}{name}", name
        if (section := section_of(field)) is not None:
            yield from _paths(section.model_fields, f"{prefix}{name}.")


def _innermost(location: tuple[int | str, ...]) -> tuple[int, Fields]:
    """Returns the number of nested sections at the start of a location, and the last one's keys."""
    fields: Fields = SweepSpec.model_fields
    for depth, part in enumerate(location):
        section = section_of(fields.get(str(part)))
        if section is None:
            return depth, fields
        fields = section.model_fields
    return len(location), fields


def _field(location: tuple[int | str, ...]) -> FieldInfo | None:
    depth, fields = _innermost(location)
    return fields.get(str(location[depth])) if 0 < depth < len(location) else None


def _description(location: tuple[int | str, ...]) -> str:
    field = _field(location)
    return (field.description or "") if field else ""


def _path(location: tuple[int | str, ...]) -> str:
    """Returns `train.global_batch` or `space.data[0]`, without pydantic's parts for unions."""
    depth, field = _innermost(location)[0], _field(location)
    path = ".".join(str(part) for part in location[: depth + 1])
    for part in location[depth + 1 :]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part != "[key]" and field is not None and not _is_union(field):
            path += f".{part}"
    return path


def _is_union(field: FieldInfo) -> bool:
    if get_origin(field.annotation) not in (Union, UnionType):
        return False
    return len([choice for choice in get_args(field.annotation) if choice is not NoneType]) > 1
