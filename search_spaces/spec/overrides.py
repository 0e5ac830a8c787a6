"""Keys of a specification that are set from the command line, by `--set KEY=VALUE`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from search_spaces.errors import Fault, SpecError
from search_spaces.spec.faults import shown
from search_spaces.spec.schema import SweepSpec
from search_spaces.spec.section import Section, section_of
from search_spaces.spec.tree import read_tree

FLAG = "--set"
_BY_NAME, _NAME = "model", "name"  # `model: gpt2` stands for `model: {name: gpt2}`


def known_keys() -> Iterator[str]:
    """Yields every key of a specification with its sections, as `train.global_batch`."""
    for name, field in SweepSpec.model_fields.items():
        section = section_of(field)
        yield from [name] if section is None else _keys_below(section, name)


def override(tree: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The tree of a specification with keys set from the command line; the last of a key wins.

    Args:
        tree: Plain values as they stand in the file.
        overrides: `KEY=VALUE`, as `train.global_batch=64`; the value is read as YAML.

    Raises:
        SpecError: If one is no KEY=VALUE, names no key, or its value is no YAML.
    """
    changed = dict(tree)
    for text in overrides:
        key, value = _parsed(text)
        _check_key(key)
        _set(changed, key.split("."), value)
    return changed


def flagged(faults: Iterable[Fault], overrides: Sequence[str]) -> Iterator[Fault]:
    """The faults, with `--set` before those of values that the command line has set."""
    keys = tuple(text.partition("=")[0].strip() for text in overrides)
    for fault in faults:
        ours = any(re.match(rf"{re.escape(key)}(?![\w-])", fault.path) for key in keys)
        yield replace(fault, path=f"{FLAG} {fault.path}") if ours else fault


def _keys_below(section: type[Section], path: str) -> Iterator[str]:
    for name, field in section.model_fields.items():
        below = section_of(field)
        yield from [f"{path}.{name}"] if below is None else _keys_below(below, f"{path}.{name}")


def _parsed(text: str) -> tuple[str, Any]:
    key, sign, value = text.partition("=")
    key = key.strip()
    if not sign or not key:
        raise _refusal(text, "is no KEY=VALUE, such as train.global_batch=64")
    tree, faults = read_tree(f"value: {value}")
    if tree is None or faults or tree.keys() != {"value"}:
        reason = faults[0].advice if faults else "is more than one value"
        raise _refusal(key, f"{shown(value)} {reason}")
    return key, tree["value"]


def _check_key(key: str) -> None:
    """Refuses a key that no section has; what stands below a key without a section is free."""
    if key == _BY_NAME:
        return
    section: type[Section] = SweepSpec
    parts = key.split(".")
    for depth, part in enumerate(parts):
        field = section.model_fields.get(part)
        if field is None:
            raise _refusal(key, _unknown(section, parts[:depth], part))
        below = section_of(field)
        if below is None:
            return
        section = below
    keys = ", ".join(section.model_fields)
    raise _refusal(key, f"is a section; set one of its keys: {keys}")


def _unknown(section: type[Section], above: Sequence[str], part: str) -> str:
    here = list(section.model_fields)
    near = difflib.get_close_matches(part, here, n=1)
    elsewhere = [known for known in known_keys() if known.rpartition(".")[2] == part]
    prefix = "".join(f"{name}." for name in above)
    hints = [f"did you mean {prefix}{near[0]}?"] if near else []
    hints += [f"it exists as {' and as '.join(elsewhere)}"] if elsewhere else []
    where = f"the keys of {'.'.join(above)}" if above else "the sections"
    return "; ".join(["no such key", *hints, f"{where} are {', '.join(here)}"])


def _set(tree: dict[str, Any], parts: Sequence[str], value: Any) -> None:
    """Sets a key in place; the mappings on the way are copied, none but the tree is changed."""
    first, *rest = parts
    if not rest:
        tree[first] = value
        return
    below = tree.get(first)
    if first == _BY_NAME and isinstance(below, str):
        below = {_NAME: below}
    elif isinstance(below, list) and all(isinstance(name, str) for name in below):
        below = {name: {} for name in below}  # as cluster.accelerators may be written
    tree[first] = dict(below) if isinstance(below, Mapping) else {}
    _set(tree[first], rest, value)


def _refusal(what: str, advice: str) -> SpecError:
    return SpecError("command line", (Fault(path=f"{FLAG} {what}", value="", advice=advice),))
