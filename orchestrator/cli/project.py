"""Looks at a project: the model, data and GPUs that its specification can name."""

import os
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from orchestrator.host import system_facts
from search_spaces.errors import DataError, ModelError, UserError
from search_spaces.facts import TEXT_FORMS
from search_spaces.safety.files import is_file, is_folder, real_path
from search_spaces.specification.schema import DataSpec, ModelSpec
from search_spaces.specification.sections import TrainSpec
from search_spaces.specification.template import Origins
from workers.data.forms import data_files
from workers.models.config_source import raw_config

_MOST_ENTRIES = 500  # of a folder
_MOST_NAMES = 8
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_LENGTH = TrainSpec.model_fields["sequence_length"].default
_RECORDS = frozenset({".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".arrow", ".feather"})
_NO_PROSE = ("requirements", "constraints", "licen", "readme", "notice", "cmake", "vocab", "merges")


def look(folder: Path) -> tuple[Origins, tuple[str, ...]]:
    """Looks for a model and data in a folder and those directly in it, and for this machine's GPUs.

    Files are read, not judged by their names. Returns keys of a specification, those with several
    candidates as blanks that name them, and why files that look like a model or data are unusable.
    """
    refused: list[str] = []
    found = [] if "${" in str(folder) else [*filter(is_folder, _entries(folder)), folder]
    folders = [*{real_path(each): each for each in found}.values()]  # a link may point to another
    models = dict(_models(folders, refused))
    data = dict(islice(_data(folders, refused), _MOST_NAMES))
    values: dict[str, tuple[Any, str]] = {"cluster.workers": _ranks()}
    values["train.sequence_length"] = _length([*models.values()])
    for name, raw in models.items():
        values["model.name"] = (name, f"its config.json: {raw.get('model_type', 'own code')}")
    for file, form in data.items():
        values["data.files"] = ([file], form)
    if len(models) == len(data) == 1 and is_file(path := Path(*models, "tokenizer.json")):
        values["data.tokenizer"] = (str(path), "the model's")
    if len(models) > 1:
        values["model.name"] = (None, f"one of {', '.join(models)}")
    if len(data) > 1:
        named = (f"{file} ({form})" for file, form in data.items())
        values["data.files"] = (None, f"one or more of {', '.join(named)}")
    return values, tuple(refused)


def _entries(folder: Path) -> list[Path]:
    """Returns entries of a folder that a specification can name; none if it cannot be read."""
    try:
        visible = (each for each in folder.iterdir() if not re.search(r"^[.~]|\$\{", each.name))
        return sorted(islice(visible, _MOST_ENTRIES))
    except OSError:
        return []


def _models(folders: list[Path], refused: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the models' folders as names of models, with their configurations."""
    for folder in folders:
        if not is_file(folder / "config.json"):
            continue
        name = str(folder) if folder.is_absolute() else f"./{folder}".removesuffix("/.")
        try:
            raw = raw_config(ModelSpec(name=name))
            if isinstance(raw.get("model_type"), str) or "auto_map" in raw:
                yield name, raw
            else:
                refused.append(f"{folder / 'config.json'} has no model_type")
        except ModelError as error:
            refused.append(str(error))


def _data(folders: list[Path], refused: list[str]) -> Iterator[tuple[str, str]]:
    """Yields data files and saved `datasets` folders, with their forms and fields."""
    for folder in folders:
        is_saved = any(is_file(folder / name) for name in ("state.json", "dataset_dict.json"))
        for path in [folder] if is_saved else filter(is_file, _entries(folder)):
            try:
                if form := _form(path):
                    yield str(path), form
            except UserError as error:  # a package that reads the form may be missing, too
                is_record = _RECORDS & {suffix.lower() for suffix in path.suffixes}
                if is_record or not isinstance(error, DataError):
                    refused.append(str(error))


def _form(path: Path) -> str:
    """Returns the form of a file that holds texts, and the fields that they are in, or nothing."""
    data = DataSpec(files=(str(path),))
    form = next(data_files(data)).form
    if form in TEXT_FORMS:
        is_prose = ".txt" in path.suffixes and not path.name.lower().startswith(_NO_PROSE)
        return "text" if is_prose else ""
    from workers.data.text import read_texts

    return ", ".join((form, *read_texts(data, _LENGTH).reading.fields))


def _ranks() -> tuple[int | None, str]:
    found = system_facts()["gpus"]
    gpus = Counter(str(gpu["name"]) for gpu in found)
    kinds = " and ".join(f"{count} x {name}" for name, count in gpus.items())
    if len(gpus) > 1 or any(gpu["driver"] is None for gpu in found):
        return None, f"GPUs of one kind; this machine has {kinds}"
    visible = os.environ.get(_VISIBLE)
    if visible is None or not found:
        return len(found) or 1, f"ranks: {kinds or 'no NVIDIA GPU'} in this machine"
    # CUDA stops at the first that is none
    named = takewhile(re.compile(r"\d|GPU-|MIG-").match, map(str.strip, visible.split(",")))
    count = min(len([*named]), len(found))
    return count or 1, f"ranks: {_VISIBLE} shows {count} of {kinds} in this machine"


def _length(models: list[dict[str, Any]]) -> tuple[int, str]:
    for raw in models if len(models) == 1 else ():
        text = part if isinstance(part := raw.get("text_config"), dict) else raw
        longest = text.get("max_position_embeddings", text.get("n_positions"))
        if type(longest) is int and longest > 0:
            return min(_LENGTH, longest), f"tokens of a sample; the model takes up to {longest:,}"
    return _LENGTH, "tokens of a sample, at most; the default"
