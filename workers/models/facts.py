"""Facts of a model, cached on disk by the content that they follow from."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from search_spaces.facts import ModelFacts
from search_spaces.presets.catalogue import preset_config, preset_names
from search_spaces.spec.schema import ModelSpec
from search_spaces.spec.sections import TrainSpec
from workers.models.user_code import importable_from_cwd

_CODE = Path(__file__).parents[2]
_PACKAGES = ("search_spaces", "workers")  # their code describes and traces models
_SOFTWARE = ("torch", "transformers", "peft")
_DIGITS = 24


def cache_folder(kind: str) -> Path:
    """Returns a folder of cached files, `$XDG_CACHE_HOME/plimsoll/KIND` or in `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "plimsoll" / kind


def content_digest(content: Any) -> str:
    """Returns the digest of JSON values, of Plimsoll's code and of the versions of libraries."""
    software = [_version(package) for package in _SOFTWARE]
    key = {"content": content, "code": code_digest(), "software": software}
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:_DIGITS]


def save_file(path: Path, content: bytes) -> None:
    """Writes a cached file at once; without access to its folder, nothing is cached."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".new", delete=False) as file:
            file.write(content)
        Path(file.name).replace(path)


@cache
def code_digest() -> str:
    """Returns the digest of all code that describes, builds and traces models."""
    files = [file for package in _PACKAGES for file in sorted((_CODE / package).rglob("*.py"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


@cache
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def model_source(spec: ModelSpec) -> Any:
    """Returns the content that defines a model, as JSON values.

    Raises:
        ModelError: If there is no such model.
    """
    name = spec.name
    if ":" in name:
        return dict(_python_files(name.partition(":")[0]))
    if name in preset_names():
        return preset_config(name)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return {
            file.name: _hash(file)
            for file in sorted((*folder.glob("*.json"), *folder.glob("*.py")))
        }
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(name, "config.json") if name.count("/") <= 1 else None
    if isinstance(config, str):
        return _hash(Path(config))
    from workers.models.config_source import raw_config

    return raw_config(spec)


def _python_files(module: str) -> Iterator[tuple[str, str]]:
    """Yields the module's file and those in its folder, which it may import."""
    with importable_from_cwd():
        spec = _find(module)
    if spec is None or spec.origin is None:
        return
    for file in sorted(Path(spec.origin).parent.glob("*.py")):
        yield file.name, _hash(file)


def _find(module: str) -> ModuleSpec | None:
    """Locates a module without importing the packages that contain it."""
    path: Sequence[str] | None = None
    spec: ModuleSpec | None = None
    names = module.split(".")
    for length in range(1, len(names) + 1):
        spec = PathFinder.find_spec(".".join(names[:length]), path)
        if spec is None:
            return None
        path = spec.submodule_search_locations
    return spec


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def model_facts(spec: ModelSpec, train: TrainSpec) -> ModelFacts:
    """Returns the facts of a model; without importing a framework if they are cached.

    Facts of a user's function are not cached on disk, as its code may read anything.

    Raises:
        ModelError: As `describe`.
    """
    return _facts(spec.model_dump_json(), train.model_dump_json())


@lru_cache(maxsize=32)
def _facts(spec_json: str, train_json: str) -> ModelFacts:
    spec = ModelSpec.model_validate_json(spec_json)
    train = TrainSpec.model_validate_json(train_json)
    if ":" in spec.name:
        return _described(spec, train)
    file = _cached_file(spec, train)
    try:
        return _adapter().validate_json(file.read_bytes())
    except (OSError, ValidationError):
        facts = _described(spec, train)
    save_file(file, _adapter().dump_json(facts))
    return facts


def _described(spec: ModelSpec, train: TrainSpec) -> ModelFacts:
    from workers.models.load import describe

    return describe(spec, train)


def _cached_file(spec: ModelSpec, train: TrainSpec) -> Path:
    digest = content_digest(
        {
            "model": spec.model_dump(mode="json"),
            "source": model_source(spec),
            "sequence_length": train.sequence_length,
            "lora": train.lora.model_dump(mode="json") if train.method == "lora" else None,
        }
    )
    return cache_folder("models") / f"{digest}.json"


@lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[ModelFacts]:
    return TypeAdapter(ModelFacts)
