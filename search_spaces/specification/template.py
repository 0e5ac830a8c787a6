"""Texts that `plimsoll init` writes: a commented specification with every key, and the examples."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from importlib.resources import files

from pydantic.fields import FieldInfo

from search_spaces.errors import UserError
from search_spaces.specification.schema import SweepSpec
from search_spaces.specification.sections import section_of

WIDTH = 92  # columns, of which two are for "# "
EXAMPLES: Mapping[str, str] = {  # of each required key
    "model.name": "gpt2",
    "train.global_batch": "32",
}
_HEAD = """\
A Plimsoll sweep: find the plan with the most samples per second that fits in memory.
Keys that are commented out show their default.
Relative paths start at the current directory.
Run it with: plimsoll tune FILE"""
RUNNABLE_EXAMPLES = ("demo",)
TEXT_FILE = "topics.txt"
_HERE = "search_spaces.specification"


def commented_template() -> str:
    """Returns the YAML text that `plimsoll init` writes, a valid specification."""
    lines = [*_comment(_HEAD, "")]
    for name, field in SweepSpec.model_fields.items():
        lines += ["", *_entry(name, field, "")]
    return "\n".join(lines) + "\n"


def _entry(path: str, field: FieldInfo, indent: str) -> Iterator[str]:
    key, section = path.rpartition(".")[2], section_of(field)
    if section is not None:
        yield from _comment(field.description or section.__doc__ or "", indent)
        yield f"{indent}{key}:"
        for name, entry in section.model_fields.items():
            yield from _entry(f"{path}.{name}", entry, f"{indent}  ")
        return
    yield from _comment(field.description or "", indent)
    if field.is_required():
        yield f"{indent}{key}: {EXAMPLES[path]}"
    else:
        yield f"{indent}# {key}: {default_text(field)}".rstrip()


def _comment(text: str, indent: str) -> Iterator[str]:
    for line in text.splitlines():
        for part in textwrap.wrap(line, WIDTH - len(indent) - 2, break_on_hyphens=False):
            yield f"{indent}# {part}"


def example_files(name: str) -> dict[str, str]:
    """Returns the files of an example as texts by file name; its specification is `NAME.yaml`.

    Raises:
        UserError: If there is no such example.
    """
    if name not in RUNNABLE_EXAMPLES:
        examples = ", ".join(RUNNABLE_EXAMPLES)
        raise UserError(f"there is no example {name!r}; the examples are {examples}")
    spec = (files(_HERE) / "examples" / f"{name}.yaml").read_text("utf-8")
    return {f"{name}.yaml": spec, TEXT_FILE: demo_text()}


def demo_text() -> str:
    """Returns the topics of Python's own help: English paragraphs of realistic lengths."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name].strip() for name in sorted(topics)) + "\n"


def default_text(field: FieldInfo) -> str:
    """Formats the default of a field as YAML."""
    value = field.get_default(call_default_factory=True)
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", value)
    return str(value) if plain else json.dumps(value)
