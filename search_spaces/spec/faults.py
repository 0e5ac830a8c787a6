"""What pydantic found wrong, in the words of the person who wrote the file."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from search_spaces.errors import Fault
from search_spaces.spec.schema import SweepSpec

MAX_SHOWN = 60  # characters of a value in a message

_ADVICE: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "greater_than_equal": lambda context: f"must be {_number(context['ge'])} or more",
    "greater_than": lambda context: f"must be above {_number(context['gt'])}",
    "less_than_equal": lambda context: f"must be {_number(context['le'])} or less",
    "less_than": lambda context: f"must be below {_number(context['lt'])}",
    "string_too_short": lambda _: "must not be empty",
    "string_too_long": lambda context: f"must have at most {context['max_length']} characters",
    "int_type": lambda _: "must be a whole number",
    "int_parsing": lambda _: "must be a whole number",
    "int_parsing_size": lambda _: "must be a smaller number",
    "int_from_float": lambda _: "must be a whole number",
    "float_type": lambda _: "must be a number",
    "float_parsing": lambda _: "must be a number",
    "finite_number": lambda _: "must be a finite number",
    "string_type": lambda _: "must be text (in quotes where YAML would read something else)",
    "bool_type": lambda _: "must be true or false",
    "bool_parsing": lambda _: "must be true or false",
    "dict_type": lambda _: "must be a section of keys and values",
    "literal_error": lambda context: f"must be {context['expected'].replace(chr(39), '')}",
    "value_error": lambda context: str(context["error"]),
}
_WHOLE_SECTION = ("value_error", "missing")  # the value is the section: too long to show


def schema_faults(error: ValidationError) -> Iterator[Fault]:
    """Each fault once, in the order of the schema; alternatives of one key are joined by "or"."""
    found: dict[str, list[Fault]] = {}
    for detail in error.errors(include_url=False):
        for fault in _faults_of(detail):
            found.setdefault(fault.path, []).append(fault)
    for path, faults in found.items():
        advices = dict.fromkeys(fault.advice for fault in faults)
        joined = ", or ".join(
            advice if number == 0 else advice.removeprefix("must be ")
            for number, advice in enumerate(advices)
        )
        yield Fault(path=path, value=faults[0].value, advice=joined)


def stray_booleans(tree: Mapping[str, Any]) -> Iterator[Fault]:
    """Booleans where the schema has none: pydantic would take `true` for the number 1."""
    for section, keys in tree.items():
        known = _fields(section)
        if not isinstance(keys, Mapping) or known is None:
            continue
        for key, value in keys.items():
            if key in known and known[key].annotation not in (bool, dict[str, Any]):
                yield from _booleans_in(value, f"{section}.{key}")


def _booleans_in(value: Any, path: str) -> Iterator[Fault]:
    if isinstance(value, bool):
        yield Fault(path=path, value=shown(value), advice="must not be true or false")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _booleans_in(item, f"{path}[{index}]")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _booleans_in(item, f"{path}.{key}")


def shown(value: Any) -> str:
    """A value as JSON has it, cut where it gets long; nothing for None."""
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
        yield Fault(path=path, value=shown(detail["input"]), advice=advice)
    elif kind == "model_type":
        keys = ", ".join(_fields(str(location[0])) or ())
        name = "a name or " if path == "model" else ""
        advice = f"must be {name}a section with some of the keys {keys}"
        yield Fault(path=path, value=shown(detail["input"]), advice=advice)
    else:
        value = "" if kind in _WHOLE_SECTION else shown(detail["input"])
        yield Fault(path=path, value=value, advice=_advice(detail, location))


def _advice(detail: ErrorDetails, location: tuple[int | str, ...]) -> str:
    kind, context = detail["type"], cast("Mapping[str, Any]", detail.get("ctx", {}))
    description = _description(location)
    if kind == "string_pattern_mismatch":
        return f"may hold only {description}"
    say = _ADVICE.get(kind)
    if kind == "tuple_type":
        item = detail["input"] if isinstance(detail["input"], str | int | float) else "a, b"
        advice = f"must be a list, such as [{item}]"
    else:
        advice = say(context) if say else detail["msg"]
    if kind in ("literal_error", "value_error") or len(location) != 2 or not description:
        return advice
    return f"{advice} ({description})"


def _missing(location: tuple[int | str, ...]) -> Iterator[Fault]:
    if len(location) > 1:
        advice = f"is missing: {_description(location)}"
        yield Fault(path=_path(location), value="", advice=advice)
        return
    section = str(location[0])
    for key, field in (_fields(section) or {}).items():
        if field.is_required():
            yield from _missing((section, key))


def _unknown_key(location: tuple[int | str, ...]) -> str:
    key = str(location[-1])
    here = list(_fields(str(location[0])) or {}) if len(location) > 1 else list(_sections())
    near = difflib.get_close_matches(key, here, n=1)
    paths = {
        f"{section}.{name}": name for section in _sections() for name in _fields(section) or {}
    }
    elsewhere = [path for path, name in paths.items() if name == key]
    hints = [f"did you mean {near[0]}?"] if near else []
    if elsewhere:
        hints.append(f"it exists as {' and as '.join(elsewhere)}")
    if not hints:
        close = difflib.get_close_matches(key, paths.values(), n=1)
        hints = [f"did you mean {path}?" for path, name in paths.items() if name in close]
    return "no such key; " + ("; ".join(hints) or f"the keys here are {', '.join(here)}")


def _number(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


def _sections() -> tuple[str, ...]:
    return tuple(SweepSpec.model_fields)


def _fields(section: str) -> dict[str, FieldInfo] | None:
    """The keys of a section, None if there is no such section."""
    field = SweepSpec.model_fields.get(section)
    if field is None:
        return None
    model = cast("type[BaseModel]", field.annotation)
    return model.model_fields


def _description(location: tuple[int | str, ...]) -> str:
    fields = _fields(str(location[0])) if len(location) > 1 else None
    field = (fields or {}).get(str(location[1])) if len(location) > 1 else None
    return (field.description or "") if field else ""


def _path(location: tuple[int | str, ...]) -> str:
    """`train.global_batch`, `space.data[0]`; without what pydantic adds for unions and keys."""
    path = ".".join(str(part) for part in location[:2])
    known = (_fields(str(location[0])) or {}).get(str(location[1])) if len(location) > 1 else None
    for part in location[2:]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part != "[key]" and known is not None and not _is_union(known):
            path += f".{part}"
    return path


def _is_union(field: FieldInfo) -> bool:
    if get_origin(field.annotation) not in (Union, UnionType):
        return False
    return len([choice for choice in get_args(field.annotation) if choice is not NoneType]) > 1
