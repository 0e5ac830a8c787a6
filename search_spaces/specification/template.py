"""Texts that `plimsoll init` writes: specifications of a few keys or all, examples and recipes."""

import json
import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from pydantic.fields import FieldInfo

from search_spaces.errors import UserError
from search_spaces.specification.schema import SweepSpec
from search_spaces.specification.sections import section_of

WIDTH = 92  # columns, of which two are for "# "
Origins = Mapping[str, tuple[Any, str]]  # by key: its value, and its origin; or None, and a hint
EXAMPLES: Origins = {  # of each required key
    "model.name": ("gpt2", "an example: no config.json here"),
    "train.global_batch": (32, "an example: samples per optimizer step of your training"),
}
_HEAD = """\
A Plimsoll sweep: find the plan with the most samples per second that fits in memory.
Keys that are commented out show their default.
Relative paths start at the current directory.
Run it with: plimsoll tune FILE"""
RUNNABLE_EXAMPLES = ("demo",)
RECIPES = ("cheapest-gpu", "fastest-8xh100", "fit-2x24gb", "longest-context", "lora-one-gpu")
TEXT_FILE = "topics.txt"
_HERE = "search_spaces.specification"


def commented_template(values: Origins = EXAMPLES) -> str:
    """Returns a specification of these values as YAML, with every key explained."""
    lines = [*_comment(_HEAD, "")]
    for name, field in SweepSpec.model_fields.items():
        lines += ["", *_entry(name, field, "", values)]
    return "\n".join(lines) + "\n"


def origin_lines(values: Origins) -> Iterator[str]:
    """Yields the lines of a specification of these values, with comments on their origins.

    A key without a value is commented out, with what to write.
    """
    shown: list[str] = []
    order = list(SweepSpec.model_fields)
    for key in sorted(values, key=lambda key: (order.index(key.split(".")[0]), key.count("."))):
        *parents, name = key.split(".")
        for depth, parent in enumerate(parents):
            if shown[: depth + 1] != parents[: depth + 1]:
                yield f"{'  ' * depth}{parent}:"
        shown = parents
        yield f"{'  ' * len(parents)}{_origin_text(name, *values[key])}"


def one_line(text: str) -> str:
    """Returns a text without line ends and other characters that comments cannot hold."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())


def _origin_text(key: str, value: Any, origin: str) -> str:
    if value is None:
        return f"# {key}: # fill in: {one_line(origin)}"
    text = json.dumps(value, ensure_ascii=False)  # YAML has no pairs of surrogates
    text = "".join(one if one.isprintable() else f"\\u{ord(one):04x}" for one in text)
    return f"{key}: {text}  # {one_line(origin)}"


def _entry(path: str, field: FieldInfo, indent: str, values: Origins) -> Iterator[str]:
    key, section = path.rpartition(".")[2], section_of(field)
    if section is not None:
        yield from _comment(field.description or section.__doc__ or "", indent)
        yield f"{indent}{key}:"
        for name, entry in section.model_fields.items():
            yield from _entry(f"{path}.{name}", entry, f"{indent}  ", values)
        return
    yield from _comment(field.description or "", indent)
    if path in values:
        yield f"{indent}{_origin_text(key, *values[path])}"
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


def recipe(name: str, path: str, found: Origins) -> tuple[str, tuple[str, ...]]:
    """Returns a recipe's specification for a file, and the commands that answer its question.

    `found`, which is of model and data, takes the place of the recipe's model.

    Raises:
        UserError: If there is no such recipe.
    """
    if name not in RECIPES:
        raise UserError(f"there is no recipe {name!r}; the recipes are {', '.join(RECIPES)}")
    text = (files(_HERE) / "recipes" / f"{name}.yaml").read_text("utf-8")
    head, model, hint, rest = re.split(r"^model: (\S+) +# (.*\n)", text, flags=re.MULTILINE)
    head = head.replace(" FILE", f" {shlex.quote(path)}")
    lines = [*origin_lines({"model.name": (model, hint), **found}), rest]
    return head + "\n".join(lines), tuple(re.findall("^# (plimsoll .*)", head, re.MULTILINE))


def demo_text() -> str:
    """Returns the topics of Python's own help: English paragraphs of realistic lengths."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name].strip() for name in sorted(topics)) + "\n"


def default_text(field: FieldInfo) -> str:
    """Formats the default of a field as YAML."""
    value = field.get_default(call_default_factory=True)
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", value)
    return str(value) if plain else json.dumps(value)
