"""Footprints on disk, by all that they depend on.

Imports no framework, so that a cached one is read fast.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from search_spaces.costs.footprint import Footprint
from search_spaces.presets import preset_config, preset_names
from search_spaces.spec.schema import SweepSpec
from workers.models.user_code import importable_from_here

_CODE = Path(__file__).parents[2]
_PACKAGES = ("search_spaces", "workers")  # whose code decides what tracing finds
_SOFTWARE = ("torch", "transformers", "peft")
_DIGITS = 24


def default_folder() -> Path:
    """Where footprints are kept: `$XDG_CACHE_HOME/plimsoll/footprints`, or below `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "plimsoll" / "footprints"


def digest_of(spec: SweepSpec, device: str) -> str:
    """The name of all that a footprint depends on, variants apart.

    That is the model's configuration or source, the longest sample, adapters, the device, our own
    code and the versions of what is traced with.

    Raises:
        ModelError: If there is no such model.
    """
    train = spec.train
    told = {
        "code": _code(),
        "device": device,
        "model": spec.model.model_dump(mode="json"),
        "source": _source(spec),
        "data": spec.data.model_dump(mode="json"),
        "files": [_stamp(Path(file)) for file in (*spec.data.files, spec.data.tokenizer or "")],
        "sequence_length": train.sequence_length,
        "lora": train.lora.model_dump(mode="json") if train.method == "lora" else None,
        "software": [_version(package) for package in _SOFTWARE],
    }
    canonical = json.dumps(told, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:_DIGITS]


def load(folder: Path, digest: str) -> Footprint | None:
    """The cached footprint, None if there is none that can be read."""
    try:
        return _adapter().validate_json((folder / f"{digest}.json").read_bytes())
    except (OSError, ValidationError):
        return None


def save(folder: Path, footprint: Footprint) -> None:
    """Keeps a footprint; where the folder cannot be written to, it is traced anew next time."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".new", delete=False) as file:
            file.write(_adapter().dump_json(footprint))
        Path(file.name).replace(folder / f"{footprint.digest}.json")


@cache
def _adapter() -> TypeAdapter[Footprint]:
    return TypeAdapter(Footprint)


@cache
def _code() -> str:
    """Hashes the code that decides what tracing finds, so that any change of it traces anew."""
    files = [file for package in _PACKAGES for file in sorted((_CODE / package).rglob("*.py"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


@cache
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _source(spec: SweepSpec) -> Any:
    """What the model is, by content."""
    name = spec.model.name
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

    found = try_to_load_from_cache(name, "config.json") if name.count("/") <= 1 else None
    if isinstance(found, str):
        return _hash(Path(found))
    from workers.models.config_source import raw_config

    return raw_config(spec.model)


def _python_files(module: str) -> Iterator[tuple[str, str]]:
    """The module's file and those beside it, which it may import."""
    with importable_from_here():
        found = _find(module)
    if found is None or found.origin is None:
        return
    for file in sorted(Path(found.origin).parent.glob("*.py")):
        yield file.name, _hash(file)


def _find(module: str) -> ModuleSpec | None:
    """Where a module lies, without importing the packages that it is in."""
    path: Sequence[str] | None = None
    found: ModuleSpec | None = None
    names = module.split(".")
    for length in range(1, len(names) + 1):
        found = PathFinder.find_spec(".".join(names[:length]), path)
        if found is None:
            return None
        path = found.submodule_search_locations
    return found


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _stamp(file: Path) -> tuple[int, int]:
    """Tells one content of a file from another: when it was changed, and its bytes."""
    try:
        status = file.expanduser().stat()
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)
