"""Cache of footprints on disk, keyed by everything that they depend on.

It imports no framework, so that reading a cached footprint is fast.
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
from search_spaces.presets.catalogue import preset_config, preset_names
from search_spaces.spec.schema import SweepSpec
from workers.models.user_code import importable_from_cwd

_CODE = Path(__file__).parents[2]
_PACKAGES = ("search_spaces", "workers")  # their code affects the result of tracing
_SOFTWARE = ("torch", "transformers", "peft")
_DIGITS = 24


def default_folder() -> Path:
    """Returns the folder of footprints, `$XDG_CACHE_HOME/plimsoll/footprints` or in `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "plimsoll" / "footprints"


def digest_of(spec: SweepSpec, device: str) -> str:
    """Returns the digest of everything that a footprint depends on, except its variants.

    That is the model's configuration or source, the longest sample, adapters, the device,
    Plimsoll's own code, and the versions of the libraries that run the trace.

    Raises:
        ModelError: If there is no such model.
    """
    train = spec.train
    key = {
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
    canonical = json.dumps(key, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:_DIGITS]


def load(folder: Path, digest: str) -> Footprint | None:
    """Returns the cached footprint, None if there is none or it cannot be read."""
    try:
        return _adapter().validate_json((folder / f"{digest}.json").read_bytes())
    except (OSError, ValidationError):
        return None


def save(folder: Path, footprint: Footprint) -> None:
    """Saves a footprint; without access to the folder, the next run traces it again."""
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
    # any change of the code that affects the result of tracing must trace again
    files = [file for package in _PACKAGES for file in sorted((_CODE / package).rglob("*.py"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


@cache
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _source(spec: SweepSpec) -> Any:
    """Returns the content that defines the model."""
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

    config = try_to_load_from_cache(name, "config.json") if name.count("/") <= 1 else None
    if isinstance(config, str):
        return _hash(Path(config))
    from workers.models.config_source import raw_config

    return raw_config(spec.model)


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


def _stamp(file: Path) -> tuple[int, int]:
    try:
        status = file.expanduser().stat()
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)  # identifies the file's content
