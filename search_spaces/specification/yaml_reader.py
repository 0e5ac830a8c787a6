"""Reader of YAML text as plain values, stricter and plainer than YAML 1.1.

Differences from PyYAML's safe loader:

- A duplicate key is a fault (PyYAML silently takes the last).
- `1e-4` is a number (PyYAML reads text unless there is a dot), `010` is ten, not eight, and
  dates, `1:30` and other curiosities are text. `yes`, `no`, `on` and `off` are booleans.
- Keys are text or whole numbers.
- The expansion of aliases is bounded, so that a few lines cannot fill the memory.
"""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from search_spaces.errors import Fault, SpecError
from search_spaces.safety.files import MIB, FileTooLarge, read_bounded

MAX_VALUES = 20_000  # scalars, lists and mappings, with aliases expanded
MAX_DEPTH = 40
MAX_DIGITS = 4_000  # Python refuses to read longer whole numbers by default

_TAG = "tag:yaml.org,2002:"
_NULL = re.compile(r"^(?:~|null|Null|NULL|)$")
_BOOL = re.compile(r"^(?:yes|no|true|false|on|off)$", re.IGNORECASE)
_INT = re.compile(r"^[-+]?[0-9]+(?:_[0-9]+)*$")
_FLOAT = re.compile(r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$")
_OPENINGS = re.compile(r"(?:[\[{]\s*){200}")  # in a row, none of them closed
_TRUE = ("yes", "true", "on")

# patterns of plain scalars by their first character; None stands for any
_RESOLVERS = {
    None: [
        (f"{_TAG}null", _NULL),
        (f"{_TAG}bool", _BOOL),
        (f"{_TAG}int", _INT),
        (f"{_TAG}float", _FLOAT),
    ]
}


class SpecLoader(yaml.SafeLoader):
    """Resolves plain scalars by the rules of this module; used to compose, not to construct."""

    yaml_implicit_resolvers = _RESOLVERS


class SpecDumper(yaml.SafeDumper):
    """Quotes text that `SpecLoader` would read as something else."""

    yaml_implicit_resolvers = _RESOLVERS

    def ignore_aliases(self, data: Any) -> bool:
        """Writes equal values twice instead of as an alias."""
        return True


class _TooMuchError(Exception):
    """The tree is larger or deeper than any specification."""


def read_tree(text: str) -> tuple[dict[str, Any] | None, tuple[Fault, ...]]:
    """Returns the mapping in a YAML text (None if it has none), and the text's faults."""
    try:
        if _OPENINGS.search(text):  # over which PyYAML's scanner would take a minute
            raise _TooMuchError
        node = yaml.compose(text, Loader=SpecLoader)
        reader = _Reader()
        tree = {} if node is None else reader.value(node, "", 0)
    except yaml.YAMLError as error:
        return None, (_syntax_fault(error),)
    except (RecursionError, _TooMuchError):
        return _refused(
            f"holds more than {MAX_VALUES:,} values or is nested deeper than {MAX_DEPTH}"
        )
    if not isinstance(tree, dict):
        kind = "a list" if isinstance(tree, list) else "a single value"
        return _refused(f"is {kind}, but must hold sections such as `model:` and `train:`")
    if not tree and not reader.faults:
        return _refused("is empty; it needs at least `model: gpt2` and `train: {global_batch: 32}`")
    return tree, tuple(reader.faults)


def _refused(advice: str) -> tuple[None, tuple[Fault]]:
    return None, (Fault(path="file", advice=advice),)


class _Reader:
    """Converts nodes to values and collects faults."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self._values = 0

    def _note(self, path: str, advice: str) -> None:
        self.faults.append(Fault(path=path, advice=advice))

    def value(self, node: yaml.Node, path: str, depth: int) -> Any:
        self._values += 1
        if self._values > MAX_VALUES or depth > MAX_DEPTH:
            raise _TooMuchError
        if isinstance(node, yaml.MappingNode):
            return dict(self._items(node, path, depth))
        if isinstance(node, yaml.SequenceNode):
            return [
                self.value(child, f"{path}[{index}]", depth + 1)
                for index, child in enumerate(node.value)
            ]
        return self._scalar(node, path)

    def _items(self, node: yaml.MappingNode, path: str, depth: int) -> Iterator[tuple[str, Any]]:
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = self._key(key_node, path or "file", line)
            if key is None:
                continue
            where = f"{path}.{key}" if path else key
            if key in lines:
                both = f"line {line}" if lines[key] == line else f"lines {lines[key]} and {line}"
                self._note(where, f"is given twice, in {both}; keep one")
                continue
            lines[key] = line
            yield key, self.value(value_node, where, depth + 1)

    def _key(self, node: yaml.Node, path: str, line: int) -> str | None:
        if isinstance(node, yaml.ScalarNode) and node.tag in (f"{_TAG}str", f"{_TAG}int"):
            return str(self._scalar(node, path))
        key = str(node.value)[:20] if isinstance(node, yaml.ScalarNode) else "a list or mapping"
        advice = f"has the key {key!r} in line {line}; keys must be text (put it in quotes)"
        self._note(path, advice)
        return None

    def _scalar(self, node: yaml.Node, path: str) -> Any:
        text, kind = str(node.value), node.tag.removeprefix(_TAG)
        if kind not in ("null", "bool", "int", "float", "str"):
            self._note(path, f"has the tag {kind!r}; only plain values can be used")
        elif any("\ud800" <= character <= "\udfff" for character in text):
            self._note(path, "holds half of a surrogate pair, which is not text")
        else:
            return _plain(text, kind)
        return None


def _plain(text: str, kind: str) -> Any:
    """Returns the value of a scalar; numbers that are not finite stay text, for the schema."""
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() in _TRUE
    if kind == "int" and _INT.match(text) and len(text) <= MAX_DIGITS:
        return int(text)
    if kind in ("int", "float") and _FLOAT.match(text) and math.isfinite(float(text)):
        return float(text)
    return text


def _syntax_fault(error: yaml.YAMLError) -> Fault:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "file"
        problem = error.problem or error.context or "cannot be read"
        return Fault(path=where, advice=f"is not valid YAML: {problem}")
    if isinstance(error, yaml.reader.ReaderError):
        code = error.character if isinstance(error.character, int) else ord(error.character)
        advice = f"the character U+{code:04X} is not allowed in YAML"
        return Fault(path=f"position {error.position}", advice=advice)
    return Fault(path="file", advice=f"is not valid YAML: {error}")


def yaml_text(path: Path, *, kind: str, command: str = "") -> str:
    """Returns the text of a YAML file, which may hold a page or two.

    Args:
        path: The file.
        kind: What it describes, for messages, such as "a specification".
        command: The command that writes one; empty if none does.

    Raises:
        SpecError: If it cannot be read.
    """

    def refuse(advice: str) -> SpecError:
        return SpecError(str(path), (Fault(path="file", advice=advice),))

    try:
        return read_bounded(path, MIB).decode("utf-8-sig")
    except FileTooLarge:
        raise refuse(f"is larger than 1 MiB, too large for {kind}") from None
    except FileNotFoundError:
        hint = f"; `{command}` writes one" if command else ""
        raise refuse(f"does not exist{hint}") from None
    except IsADirectoryError:
        raise refuse("is a folder; name the YAML file in it") from None
    except UnicodeDecodeError as error:
        raise refuse(f"is not UTF-8 text (byte {error.start} is invalid)") from None
    except OSError as error:
        raise refuse(f"cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a path with a null byte
        raise refuse(f"is not a valid file name: {error}") from None
