"""Arguments of the Python API as a study: keywords, a mapping, a file or a `SweepSpec`."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.workspace import NamedStudy
from search_spaces.errors import DataError
from search_spaces.safety.files import is_file
from search_spaces.specification.load import load_spec, set_key, study_name, validated
from search_spaces.specification.schema import SweepSpec
from search_spaces.specification.sections import SpecSection, section_of
from workers.models.trust import trust_modules

Model = str | os.PathLike[str] | Mapping[str, Any] | SweepSpec | Callable[..., Any]


def job_of(caller: str, given: Model | None, keys: Mapping[str, Any]) -> NamedStudy:
    """Makes a study of a specification or a model; a model of Python becomes a file of its folder.

    Messages name the `caller`. Keys that are None leave those of a specification.

    Raises:
        UserError: If the specification has faults, or model or data cannot be used.
    """
    tree: dict[str, Any] = {}
    path = Path(given) if isinstance(given, str | os.PathLike) else None
    if path is not None and not (path.suffix in (".yaml", ".yml") or is_file(path)):
        path, given = None, str(given)
    if path is not None or isinstance(given, SweepSpec):
        tree = (load_spec(path) if path else SweepSpec.model_validate(given)).model_dump()
    else:
        _merge(tree, given if isinstance(given, Mapping) else {"model": given})
    _merge(tree, keys)
    section = tree.get("model") or {}
    model: Any = section.get("name") if isinstance(section, Mapping) else None
    if not callable(model):
        data = tree.get("data")
        if isinstance(model, str) and not isinstance(data, str | Mapping | None):
            raise DataError(
                f"data is a {type(data).__name__} in memory, and {model} trains on files or batches"
                " of its own: write samples as JSON lines, or give a class or function as the model"
            )
        spec = validated(tree, source=caller)
        label = Path(spec.model.name.rpartition(":")[2]).name
        return NamedStudy(spec=spec, name=study_name(spec, path or Path(f"{label}.yaml")))
    names = (getattr(one, "__name__", "") for one in (model, getattr(model, "func", None)))
    label = next((name for name in names if name.isidentifier()), "model")
    data = tree.pop("data", None)
    if isinstance(data, Mapping):
        tree["data"], data = data, data if any(data.values()) else None
    spec = validated(tree | {"model": {**section, "name": label}}, source=caller)
    name = study_name(spec, path or Path(f"{label}.yaml"))
    from workers.models.own_model import save_model

    file = save_model(model, data, label, Path(spec.study.folder, name))
    saved = spec.model.model_copy(update={"name": file})
    trust_modules((saved.pickle,))  # it is the program's own
    return NamedStudy(spec=spec.model_copy(update={"model": saved}), name=name)


def _merge(tree: dict[str, Any], keys: Mapping[str, Any]) -> None:
    """Sets keys in place: sections, their keys below them, or keys that only one section has."""
    homes: dict[str, list[str]] = {}
    for path in _keys(SweepSpec):
        homes.setdefault(path.rpartition(".")[2], []).append(path)
    sections = SweepSpec.model_fields
    for key in sorted(keys, key=lambda key: key in sections):
        value = _section(key, keys[key])
        if value is None:
            continue
        if key not in sections and len(homes.get(key, ())) == 1:
            set_key(tree, homes[key][0].split("."), value)
        elif isinstance(value, Mapping) and section_of(sections.get(key)):
            for name, one in value.items():
                set_key(tree, [key, name], one)
        else:
            tree[key] = value  # the schema says if no section has the key, or several do


def _keys(section: type[SpecSection], path: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        below = section_of(field)
        yield from [path + name] if below is None else _keys(below, f"{path}{name}.")


def _section(key: str, value: Any) -> Any:
    """Returns the section that stands for a name, or for files."""
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    if key in ("model", "study") and value is not None and not isinstance(value, Mapping):
        return {"name": value}
    files = [value] if isinstance(value, str) else value
    if key == "data" and isinstance(files, list) and {*map(type, files)} <= {str, type(Path())}:
        return {"files": [*map(str, files)], "lengths": {}} if files else value
    return value
