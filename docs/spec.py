"""Reference of the specification as Markdown, generated from the schema.

`python docs/spec.py > docs/spec.md` regenerates it; a test checks that it is up to date.
"""

import sys
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from search_spaces.specification.schema import SweepSpec
from search_spaces.specification.sections import SpecSection, section_of
from search_spaces.specification.template import default_text

_HEAD = """\
# The specification

One YAML file describes a sweep. Only `model.name` and `train.global_batch` are required.
`plimsoll init --all` writes a file with every key at its default. `plimsoll check FILE` reports all
faults at once, and what the sweep would do. Relative paths start at the current directory. Brackets
hold type and default.

For your editor, `plimsoll init` writes `plimsoll.schema.json` too, and the file begins with
`# yaml-language-server: $schema=plimsoll.schema.json`.

This page is generated: `python docs/spec.py > docs/spec.md`
"""
_TYPE_NAMES = {str: "text", int: "integer", float: "number", bool: "boolean"}
_NO_BOUND = 1_000_000  # from here on, a bound only stops mistyped numbers
_COMPARISONS = {"ge": "from", "gt": "above", "le": "to", "lt": "below"}


def markdown_reference() -> str:
    """Returns the reference: every key with its type, default and meaning, a list per section."""
    parts = [_HEAD]
    for name, field in SweepSpec.model_fields.items():
        parts += _sections(name, field)
    return "\n".join(parts)


def _sections(path: str, field: FieldInfo) -> Iterator[str]:
    """Yields the keys of a section, then those of the sections in it."""
    if (section := section_of(field)) is None:
        if "." not in path:
            yield f"## {path}\n\nHolds {field.description}.\n"
        return
    keys = section.model_fields.items()
    yield f"## {path}\n\n{section.__doc__}\n"
    if path == "space":
        yield "[knobs.md](knobs.md) has the values.\n"
        yield "".join(f"- `{key}`: {entry.description}\n" for key, entry in keys)
        return
    yield "".join(_item(key, entry, path) for key, entry in keys)
    for key, entry in keys:
        yield from _sections(f"{path}.{key}", entry)


def _item(key: str, field: FieldInfo, path: str) -> str:
    if section_of(field):
        return f"- `{key}`: {field.description}, see `{path}.{key}` below\n"
    type_text = " ".join((_type_text(field.annotation), *_bounds(field.metadata)))
    default = "required" if field.is_required() else f"`{default_text(field)}`"
    return f"- `{key}` ({type_text}; {default}): {field.description}\n"


def _type_text(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in _TYPE_NAMES:
        return _TYPE_NAMES[kind]
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in arguments)
    if origin is Annotated:
        bounds = " ".join(_bounds(arguments[1:]))
        return f"{_type_text(arguments[0])} {bounds}".strip()
    if origin in (Union, types.UnionType):
        return " or ".join(_type_text(part) for part in arguments if part is not type(None))
    if origin is tuple:
        return f"list of {_type_text(arguments[0])}"
    if origin is dict:
        return f"mapping of {_type_text(arguments[0])} to {_type_text(arguments[1])}"
    if isinstance(kind, type) and issubclass(kind, SpecSection):
        return "a section, see below"
    return "anything" if kind is Any else str(kind)


def _bounds(metadata: Any) -> Iterator[str]:
    for entry in metadata:
        constraints = entry.metadata if isinstance(entry, FieldInfo) else [entry]
        for constraint in constraints:
            for name, words in _COMPARISONS.items():
                bound = getattr(constraint, name, None)
                if bound is not None and bound < _NO_BOUND:
                    yield f"{words} {bound:,}"


if __name__ == "__main__":
    sys.stdout.write(markdown_reference())
