"""Files of other trainers as keys and values: JSON, YAML, TOML, or Python, which is only parsed.

The content decides on the form and on the trainer, the suffix only on whose complaint a broken
file gets.
"""

import ast
import copy
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from search_spaces.errors import UserError
from search_spaces.safety.files import is_file
from search_spaces.specification.trainer_configs.tables import Trainer, trainers
from search_spaces.specification.yaml_reader import read_tree, yaml_text

Values = dict[str, Any]
ANY = "*"  # the first of several configurations in a Python file
_FORMS = {".json": "JSON", ".toml": "TOML", ".py": "Python"}
_OWN = ("train", "space", "budget", "objective")  # sections of a specification


class _FormError(Exception):
    """A text that is not of one form."""


def read_document(source: str) -> tuple[Trainer, Values]:
    """Returns the trainer whose configuration a file is, and its values by dotted key.

    Args:
        source: The file; `FILE:NAME` for one of several configurations in a Python file.

    Raises:
        UserError: If the file cannot be read or parsed, or belongs to no known trainer.
    """
    file, _, name = source.rpartition(":")
    path = Path(file if file and not is_file(Path(source)) else source)
    text = yaml_text(path, kind="a configuration")
    values, problem = _parsed(text, path, name if path != Path(source) else "")
    if problem:
        raise UserError(f"{path} {problem}")
    trainer = trainer_of(values)
    if trainer is None:
        raise UserError(f"{path} has no keys of a known trainer: {', '.join(trainers())}")
    return trainer, values


def recognized_trainer(path: Path) -> str | None:
    """Returns the name of the trainer whose configuration a file is; None if it is none's."""
    try:
        trainer = trainer_of(_parsed(yaml_text(path, kind="a configuration"), path, ANY)[0])
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


def tree_of(values: Mapping[str, Any]) -> Values:
    """Returns values by dotted key as nested mappings: the inverse of `flattened`."""
    tree: Values = {}
    for key, value in values.items():
        *parents, name = key.split(".")
        below = tree
        for parent in parents:
            below = below.setdefault(parent, {})
        below[name] = value
    return tree


def trainer_of(values: Mapping[str, Any]) -> Trainer | None:
    """Returns the trainer that owns most of the keys; None for no keys of any, or our own."""
    # those on top of Trainer have its keys too
    specific_first = sorted(trainers().values(), key=lambda one: one.name == "TrainingArguments")
    best = max(specific_first, key=lambda trainer: sum(map(trainer.owns, values)))
    ours = [key for key in values if key.partition(".")[0] in _OWN]
    # Megatron-Bridge has a section `train` too
    return best if any(map(best.owns, ours or values)) else None


def _parsed(text: str, path: Path, name: str) -> tuple[Values, str]:
    """Returns the values by dotted key, and what is wrong with the file; one of them is empty."""
    problems: dict[str, str] = {}
    for suffix, parse in (
        (".json", json.loads),
        (".yaml", _yaml),
        (".toml", tomllib.loads),
        (".py", lambda text: _python(text, name)),
    ):
        try:
            tree = parse(text)
            inner = tree.pop("training_args", None) if isinstance(tree, dict) else None
            values = dict(flattened(tree | inner if isinstance(inner, dict) else tree))
        except _FormError as error:
            problems[suffix] = str(error)
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            problems[suffix] = f"is not valid {_FORMS.get(suffix, 'YAML')}: {error}"
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


def _python(text: str, name: str) -> Values:
    """Returns a `Trainer.Config` of torchtitan 0.3, by the name of its function or variable."""
    configs: dict[str, Values] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            _read_config(node.name, node.body, configs)
        elif isinstance(node, ast.Assign):
            _read_config(ast.unparse(node.targets[0]), [node], configs)
    if name in configs or (configs and (name == ANY or (len(configs) == 1 and not name))):
        return configs.get(name) or next(iter(configs.values()))
    if not configs:
        raise _FormError("holds no call of Trainer.Config")
    first = next(iter(configs))
    raise UserError(f"the file holds {', '.join(configs)}: name one, as in FILE:{first}")


def _read_config(name: str, body: Sequence[ast.stmt], configs: dict[str, Values]) -> None:
    """Adds the configuration that statements make: called, or copied from another and changed."""
    for statement in body:
        for call in ast.walk(statement):
            called = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
            if isinstance(call, ast.Call) and called.endswith("Trainer.Config"):
                configs[name] = _value(call) or {}
            elif called in configs and called != name:
                configs[name] = copy.deepcopy(configs[called])
        if isinstance(statement, ast.Assign) and name in configs:
            _set(configs[name], statement.targets[0], _value(statement.value))


def _set(config: Values, target: ast.expr, value: Any) -> None:
    """Sets an attribute, such as `config.training.steps`, in place."""
    if isinstance(target, ast.Attribute):
        for parent in ast.unparse(target).split(".")[1:-1]:
            below = config.get(parent)
            config[parent] = below = below if isinstance(below, dict) else {}
            config = below
        config[target.attr] = value


def _value(node: ast.expr) -> Any:
    """Returns a literal, the keywords of a call, its first argument, or the text of the code.

    A call without either is its class, such as FullAC of `FullAC.Config()`.
    """
    if isinstance(node, ast.Call) and not node.args and not node.keywords:
        return ast.unparse(node.func).removesuffix(".Config")
    if isinstance(node, ast.Call) and not node.args:
        return {keyword.arg or "**": _value(keyword.value) for keyword in node.keywords}
    node = node.args[0] if isinstance(node, ast.Call) else node
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return ast.unparse(node)
