"""Loading of specifications: a YAML file becomes a `SweepSpec`, or an error with all its faults.

Relative paths inside a specification (`data.files`, a model's folder, a tokenizer, `study.folder`)
start at the current directory, not at the file: `ray job submit --working-dir .` sets that
directory, and shells complete such paths.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from search_spaces.errors import Fault, SpecError
from search_spaces.safety.redaction import without_password
from search_spaces.specification.error_messages import format_value, schema_faults, stray_booleans
from search_spaces.specification.schema import SweepSpec, written_out
from search_spaces.specification.sections import section_of
from search_spaces.specification.trainer_configs.document import recognized_trainer
from search_spaces.specification.yaml_reader import SpecDumper, read_tree, yaml_text

FLAG = "--set"
ADDRESS_KEYS = (("study", "storage"), ("tracking", "uri"))  # keys that may hold a password
MAX_NAME_LENGTH = 128  # that of `StudySpec.name`


def override(tree: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Sets keys of a specification's tree from the command line; the last value of a key wins.

    Args:
        tree: Plain values of the file.
        overrides: `KEY=VALUE`, such as `train.global_batch=64`; the value is read as YAML.

    Returns:
        A new tree, in which the schema finds unknown keys.

    Raises:
        SpecError: If an override is not KEY=VALUE or its value invalid YAML.
    """
    changed = dict(tree)
    for text in overrides:
        key, value = _parsed(text)
        set_key(changed, key.split("."), value)
    return changed


def mark_overrides(
    faults: Iterable[Fault], overrides: Sequence[str], tree: Mapping[str, Any]
) -> Iterator[Fault]:
    """Yields the faults, with `--set` in front of those that the file's `tree` does not have."""
    keys = tuple(text.partition("=")[0].strip() for text in overrides)
    for fault in faults:
        overridden = any(re.match(rf"{re.escape(key)}(?![\w-])", fault.path) for key in keys)
        above = any(key.startswith(f"{fault.path}.") for key in keys)
        marked = overridden or (above and not _has(tree, fault.path.split(".")))
        yield replace(fault, path=f"{FLAG} {fault.path}") if marked else fault


def _has(tree: Any, parts: Sequence[str]) -> bool:
    if not parts:
        return True
    return isinstance(tree, Mapping) and parts[0] in tree and _has(tree[parts[0]], parts[1:])


def _parsed(text: str) -> tuple[str, Any]:
    key, sign, value = text.partition("=")
    key = key.strip()
    if not sign or not key:
        raise _refusal(text, "is not KEY=VALUE, such as train.global_batch=64")
    tree, faults = read_tree(f"value: {value}")
    if tree is None or faults or tree.keys() != {"value"}:
        reason = faults[0].advice if faults else "holds more than one value"
        raise _refusal(key, f"{format_value(value)} {reason}")
    return key, tree["value"]


def set_key(tree: dict[str, Any], parts: Sequence[str], value: Any) -> None:
    """Sets a key of `tree` in place; mappings below the tree are copied first."""
    first, *rest = parts
    if not rest:
        tree[first] = value
        return
    below = written_out(first, tree.get(first))
    tree[first] = dict(below) if isinstance(below, Mapping) else {}
    set_key(tree[first], rest, value)


def _refusal(text: str, advice: str) -> SpecError:
    return SpecError("command line", (Fault(path=f"{FLAG} {text}", advice=advice),))


def load_spec(path: Path, overrides: Sequence[str] = ()) -> SweepSpec:
    """Loads a specification from a YAML file, with overrides from the command line.

    Args:
        path: The file.
        overrides: `KEY=VALUE`, such as `train.global_batch=64`, which replace values of the file.

    Raises:
        SpecError: If the file cannot be read, or it or an override has faults; holds all of them.
    """
    text = yaml_text(path, kind="a specification", command="plimsoll init")
    try:
        return parse_spec(text, source=str(path), overrides=overrides)
    except SpecError:
        if (trainer := recognized_trainer(path)) is None:
            raise
    advice = f"is a configuration of {trainer}; `plimsoll init --from {path}` makes a specification"
    raise SpecError(str(path), (Fault(path="file", advice=advice),))


def parse_spec(text: str, *, source: str, overrides: Sequence[str] = ()) -> SweepSpec:
    """Parses a specification from YAML text; `source` names the text in messages.

    Raises:
        SpecError: If the text or an override has faults; holds all of them.
    """
    tree, faults = read_tree(text)
    if tree is None:
        raise SpecError(source, faults)
    filled = override(_filled(tree, SweepSpec), overrides)
    try:
        return validated(filled, source=source, syntax_faults=faults)
    except SpecError as error:
        raise SpecError(source, tuple(mark_overrides(error.faults, overrides, tree))) from None


def with_budget(
    spec: SweepSpec, *, trials: int | None, minutes: float | None, validation: bool | None = None
) -> SweepSpec:
    """Returns the specification with another budget, or with validation on or off.

    Args:
        spec: The specification.
        trials: New `budget.trials`; None keeps it.
        minutes: New `budget.minutes`; None keeps it.
        validation: New `validation.enabled`; None keeps it.

    Raises:
        SpecError: If a value is not a valid budget.
    """
    budget = {"trials": trials, "minutes": minutes}
    changes = {name: value for name, value in budget.items() if value is not None}
    tree = spec.model_dump()
    tree["budget"].update(changes)
    if validation is not None:
        tree["validation"]["enabled"] = validation
    return validated(tree, source="command line")


def study_name(spec: SweepSpec, path: Path) -> str:
    """Returns `study.name`, or else the file's stem, without characters that names may not have."""
    if spec.study.name is not None:
        return spec.study.name
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("._-")
    return cleaned[:MAX_NAME_LENGTH] or "sweep"


def spec_to_yaml(spec: SweepSpec) -> str:
    """Writes the whole specification, defaults included, as YAML that `load_spec` reads back.

    Passwords in addresses are left out, since the text is written to files.
    """
    # ASCII, because PyYAML writes some Unicode line breaks in a form that it reads back as spaces
    return yaml.dump(spec_to_tree(spec), Dumper=SpecDumper, sort_keys=False, allow_unicode=False)


def spec_to_tree(spec: SweepSpec) -> dict[str, Any]:
    """Returns the specification, defaults included, as JSON values without passwords."""
    tree = spec.model_dump(mode="json")
    for section, key in ADDRESS_KEYS:
        if tree[section][key]:
            tree[section][key] = without_password(tree[section][key])
    return tree


def _filled(tree: dict[str, Any], section: type[BaseModel]) -> dict[str, Any]:
    """Turns null sections into empty ones: all keys of a section may be commented out."""
    filled: dict[str, Any] = {}
    for key, value in tree.items():
        below = section_of(section.model_fields.get(key))
        if below is not None and value is None:
            filled[key] = {}
        elif below is not None and isinstance(value, dict):
            filled[key] = _filled(value, below)
        else:
            filled[key] = value
    return filled


def validated(
    tree: dict[str, Any], *, source: str, syntax_faults: tuple[Fault, ...] = ()
) -> SweepSpec:
    """Makes a specification of plain values, or a SpecError that holds all their faults."""
    faults = [*syntax_faults, *stray_booleans(tree)]
    try:
        spec = SweepSpec.model_validate(tree)
    except ValidationError as error:
        reported = {fault.path for fault in faults}
        faults += [fault for fault in schema_faults(error) if fault.path not in reported]
    else:
        if not faults:
            return spec
    raise SpecError(source, tuple(faults))
