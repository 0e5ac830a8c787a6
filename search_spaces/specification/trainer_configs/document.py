"""Files of other trainers as keys and values: JSON or YAML.

The content decides on the form and on the trainer, the suffix only on whose complaint a broken
file gets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from search_spaces.errors import UserError
from search_spaces.specification.trainer_configs.tables import Trainer, trainers
from search_spaces.specification.yaml_reader import read_tree, yaml_text

Values = dict[str, Any]
_OWN = ("train", "space", "budget", "objective")  # sections of a specification


class _FormError(Exception):
    """A text that is not of one form."""


def read_document(path: Path) -> tuple[Trainer, Values]:
    """Returns the trainer whose configuration a file is, and its values by dotted key.

    Raises:
        UserError: If the file cannot be read or parsed, or belongs to no known trainer.
    """
    values, problem = _parsed(yaml_text(path, kind="a configuration"), path)
    if problem:
        raise UserError(f"{path} {problem}")
    trainer = trainer_of(values)
    if trainer is None:
        raise UserError(f"{path} has no keys of a known trainer: {', '.join(trainers())}")
    return trainer, values


def recognized_trainer(path: Path) -> str | None:
    """Returns the name of the trainer whose configuration a file is; None if it is none's."""
    try:
        trainer = trainer_of(_parsed(yaml_text(path, kind="a configuration"), path)[0])
    except UserError:
        return None
    return trainer.name if trainer else None


def flattened(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the values of nested mappings by dotted key; nothing for what is no mapping."""
    for key, value in tree.items() if isinstance(tree, Mapping) else ():
        if isinstance(value, Mapping) and value:
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def trainer_of(values: Mapping[str, Any]) -> Trainer | None:
    """Returns the trainer that owns most of the keys; None for no keys of any, or our own."""
    if any(key.partition(".")[0] in _OWN for key in values):
        return None
    best = max(trainers().values(), key=lambda trainer: sum(map(trainer.owns, values)))
    return best if any(map(best.owns, values)) else None


def _parsed(text: str, path: Path) -> tuple[Values, str]:
    """Returns the values by dotted key, and what is wrong with the file; one of them is empty."""
    problems: dict[str, str] = {}
    for suffix, parse in ((".json", json.loads), (".yaml", _yaml)):
        try:
            tree = parse(text)
            inner = tree.pop("training_args", None) if isinstance(tree, dict) else None
            values = dict(flattened(tree | inner if isinstance(inner, dict) else tree))
        except _FormError as error:
            problems[suffix] = str(error)
        except (ValueError, RecursionError) as error:
            problems[suffix] = f"is not valid JSON: {error}"
        else:
            if values:
                return values, ""
            problems[suffix] = "holds no keys with values"
    return {}, problems.get(path.suffix.lower(), problems[".yaml"])


def _yaml(text: str) -> Any:
    tree, faults = read_tree(text)
    if faults:
        raise _FormError(f"({faults[0].path}) {faults[0].advice}")
    return tree
