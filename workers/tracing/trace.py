"""Traces the worker's own step without memory to find a model's footprint.

Importing this module imports no framework, so that reading a cached footprint is fast.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from search_spaces.costs.footprint import Compute, Footprint, Split
from search_spaces.plan import Attention
from search_spaces.spec.schema import SweepSpec
from workers.models.facts import cache_folder, content_digest, model_source, save_file
from workers.models.user_code import user_code_errors


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


Wanted = tuple[Attention, Compute, Split]


def trace(
    spec: SweepSpec,
    wanted: Iterable[Wanted],
    *,
    device: str = "cuda",
    cache: Path | None = None,
) -> Footprint:
    """Returns the footprint of the spec's model, with at least the wanted variants.

    Samples are as long as the longest of the spec's data. Cached variants are read, and traced
    ones are cached. Flash attention is traced as sdpa, whose kernels save and compute the same.
    A user's function chooses its own attention, which counts as each of the wanted ones.

    Args:
        spec: Model, adapters, data and sequence length count.
        wanted: Attention, compute mode and split of each variant.
        device: "cuda" or "cpu", whose kernels and autocast are emulated.
        cache: The folder of cached footprints; None: the user's own
            (`$XDG_CACHE_HOME/plimsoll/footprints`).

    Raises:
        ModelError: If the model cannot be found, built or split, or if it cannot run without
            values. The message names the operator and explains how to register a substitute.
            Other errors of the model's code become a `ModelError` too.
        DataError: If the spec's data cannot be read.
    """
    folder = default_folder() if cache is None else cache
    digest = digest_of(spec, device)
    cached = load(folder, digest)
    variants = cached.variants if cached else ()
    available = {(one.attention, one.compute, one.split) for one in variants}
    missing = [variant for variant in dict.fromkeys(wanted) if variant not in available]
    if cached is not None and not missing:
        return cached
    from workers.tracing.footprints import make_footprint

    with user_code_errors(f"{spec.model.name} cannot be traced"):
        footprint = make_footprint(spec, missing, device=device, digest=digest)
    footprint = replace(footprint, variants=(*variants, *footprint.variants))
    save(folder, footprint)
    return footprint
