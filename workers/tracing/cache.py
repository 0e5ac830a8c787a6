"""Cache of footprints on disk, keyed by everything that they depend on.

It imports no framework, so that reading a cached footprint is fast.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from search_spaces.costs.footprint import Footprint
from search_spaces.spec.schema import SweepSpec
from workers.models.content import cache_folder, content_digest, model_source, save_file


def default_folder() -> Path:
    """Returns the folder of footprints."""
    return cache_folder("footprints")


def digest_of(spec: SweepSpec, device: str) -> str:
    """Returns the digest of everything that a footprint depends on, except its variants.

    That is the model's configuration or source, the longest sample, adapters, the device,
    Plimsoll's own code, and the versions of the libraries that run the trace.

    Raises:
        ModelError: If there is no such model.
    """
    train = spec.train
    return content_digest(
        {
            "device": device,
            "model": spec.model.model_dump(mode="json"),
            "source": model_source(spec.model),
            "data": spec.data.model_dump(mode="json"),
            "files": [_stamp(Path(file)) for file in (*spec.data.files, spec.data.tokenizer or "")],
            "sequence_length": train.sequence_length,
            "lora": train.lora.model_dump(mode="json") if train.method == "lora" else None,
        }
    )


def load(folder: Path, digest: str) -> Footprint | None:
    """Returns the cached footprint, None if there is none or it cannot be read."""
    try:
        return _adapter().validate_json((folder / f"{digest}.json").read_bytes())
    except (OSError, ValidationError):
        return None


def save(folder: Path, footprint: Footprint) -> None:
    """Saves a footprint; without access to the folder, the next run traces it again."""
    save_file(folder / f"{footprint.digest}.json", _adapter().dump_json(footprint))


@cache
def _adapter() -> TypeAdapter[Footprint]:
    return TypeAdapter(Footprint)


def _stamp(file: Path) -> tuple[int, int]:
    try:
        status = file.expanduser().stat()
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)  # identifies the file's content
