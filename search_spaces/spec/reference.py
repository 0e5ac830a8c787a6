"""The reference of the specification as Markdown, made from the schema itself.

`python -m search_spaces.spec.reference > docs/spec.md` renews it; a test holds it up to date.
"""

from __future__ import annotations

import json
import re
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from search_spaces.spec.schema import SweepSpec
from search_spaces.spec.sections import Section, section_of, sections_in

_HEAD = """\
# The specification

One YAML file says what a sweep is to do. Only `model.name` and `train.global_batch` have to be
given; `plimsoll init` writes a file with every key at its default, `plimsoll check FILE` says
whether a file can be used and what it would do. Unknown keys are faults, and all faults are told
at once. Relative paths start from the current directory.

Editors complete and check a specification as it is typed: `plimsoll schema > plimsoll.schema.json`
writes the JSON Schema, and a first line `# yaml-language-server: $schema=plimsoll.schema.json` in
the YAML file names it (VS Code with its YAML extension, Neovim and others read that line). What
needs several keys at once, as that a price is known where it is asked for, only `plimsoll check`
says.

This page is made from the schema (`python -m search_spaces.spec.reference > docs/spec.md`).
"""
_WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false"}
_SIGNS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
DRAFT = "https://json-schema.org/draft/2020-12/schema"
_SECTIONS = "#/$defs/"


def markdown_reference() -> str:
    """Every key with its type, default and meaning, a table for each section."""
    parts = [_HEAD]
    for name, field in SweepSpec.model_fields.items():
        parts += _tables(name, field)
    return "\n".join(parts)


def _tables(path: str, field: FieldInfo) -> Iterator[str]:
    """The table of a section, then those of the sections in it."""
    section, named = section_of(field), sections_in(field)
    if section is None and named is not None:
        path, section = f"{path}.NAME", named
    if section is None:
        return
    head = "| key | takes | default | meaning |\n|---|---|---|---|\n"
    keys = section.model_fields.items()
    yield f"## {path}\n\n{section.__doc__}\n"
    yield head + "".join(_row(key, entry, path) for key, entry in keys)
    for key, entry in keys:
        yield from _tables(f"{path}.{key}", entry)


def _row(key: str, field: FieldInfo, path: str) -> str:
    if section_of(field):
        return f"| `{key}` | a section | | {field.description}: see `{path}.{key}` below |\n"
    takes = _type_words(field.annotation)
    if bounds := ", ".join(_bounds(field.metadata)):
        takes = f"{takes}, {bounds}"
    default = "required" if field.is_required() else f"`{_default(field)}`"
    cells = (f"`{key}`", takes, default, field.description or "")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", value)
    return str(value) if plain else json.dumps(value)


def _type_words(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in _WORDS:
        return _WORDS[kind]
    if origin is Literal:
        return " / ".join(f"`{choice}`" for choice in arguments)
    if origin is Annotated:
        bounds = ", ".join(_bounds(arguments[1:]))
        return f"{_type_words(arguments[0])} {bounds}".strip()
    if origin in (Union, types.UnionType):
        return " or ".join(_type_words(part) for part in arguments if part is not type(None))
    if origin is tuple:
        return f"list of {_type_words(arguments[0])}"
    if origin is dict:
        return f"mapping of {_type_words(arguments[0])} to {_type_words(arguments[1])}"
    if isinstance(kind, type) and issubclass(kind, Section):
        return "a section, see below"
    return "anything" if kind is Any else str(kind)


def _bounds(metadata: Any) -> Iterator[str]:
    for entry in metadata:
        constraints = entry.metadata if isinstance(entry, FieldInfo) else [entry]
        for constraint in constraints:
            for name, words in _SIGNS.items():
                if (bound := getattr(constraint, name, None)) is not None:
                    yield f"{words} {bound:,}"


if __name__ == "__main__":
    sys.stdout.write(markdown_reference())


def json_schema() -> dict[str, Any]:
    """The schema of a specification as users write it.

    Beside what pydantic makes of the sections: `model: gpt2` is a model, a section that holds
    nothing is one at its defaults, and a list of values to search holds one at least. What needs
    several keys at once, such as a price for `samples_per_price`, is for `plimsoll check` to say.
    """
    made: dict[str, Any] = _plain(SweepSpec.model_json_schema())
    definitions = made["$defs"]
    for section in (made, *definitions.values()):
        section["properties"] = {
            key: told if key in section.get("required", ()) else _or_nothing(told, definitions)
            for key, told in section["properties"].items()
        }
    made["properties"]["train"]["description"] = definitions["TrainSpec"]["description"]
    made["properties"]["model"] = {
        "anyOf": [{"type": "string", "minLength": 1}, {"$ref": f"{_SECTIONS}ModelSpec"}],
        "description": definitions["ModelSpec"]["description"],
    }
    for told in definitions["SpaceSpec"]["properties"].values():
        told["anyOf"][0]["minItems"] = 1
    definitions["DataSpec"]["properties"]["lengths"]["propertyNames"] = {
        "pattern": "^[1-9][0-9_]*$"
    }
    return {"$schema": DRAFT, "title": "Plimsoll specification", **made}


def _or_nothing(told: dict[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """A key of a section; one that is a section itself may stand without anything below it."""
    if "$ref" not in told:
        return told
    words = told.get("description") or definitions[told["$ref"].removeprefix(_SECTIONS)].get(
        "description", ""
    )
    return {"anyOf": [{"$ref": told["$ref"]}, {"type": "null"}], "description": words}


def _plain(told: Any) -> Any:
    """Without the titles, which repeat the keys."""
    if isinstance(told, dict):
        return {
            key: {name: _plain(value) for name, value in below.items()}
            if key in ("properties", "$defs")
            else _plain(below)
            for key, below in told.items()
            if key != "title"
        }
    return [_plain(each) for each in told] if isinstance(told, list) else told
