"""Files cached on disk, named for the content that they follow from."""

import contextlib
import hashlib
import json
import os
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from search_spaces.safety.files import write_durably

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
        write_durably(path, content)


@cache
def code_digest() -> str:
    """Returns the digest of all code that describes, builds and traces models."""
    files = (file for package in _PACKAGES for file in sorted((_CODE / package).rglob("*.*")))
    contents = (file.read_bytes() for file in files if file.suffix in (".py", ".yaml"))
    return hashlib.sha256(b"".join(contents)).hexdigest()


@cache
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
