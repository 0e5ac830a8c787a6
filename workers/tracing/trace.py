"""Traces the worker's own step without memory to find a model's footprint.

Importing this module imports no framework, so that reading a cached footprint is fast.
"""

import os
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from search_spaces.costs.footprint import Footprint
from search_spaces.costs.plan_encoding import VariantKey
from search_spaces.safety.files import file_stamp
from search_spaces.specification.schema import SweepSpec
from workers.models.disk_cache import cache_folder, content_digest, save_file
from workers.models.facts import model_source
from workers.models.isolation import run_apart
from workers.models.user_code import user_code_errors

_TRACE_SECONDS = 1800.0  # in a process of its own


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
    train, data = spec.train, spec.data
    files = (*data.files, data.tokenizer) if data.tokenizer else data.files
    return content_digest(
        {
            "device": device,
            "model": spec.model.model_dump(mode="json"),
            "source": model_source(spec.model),
            "data": data.model_dump(mode="json"),
            "files": [file_stamp(file) for file in files],
            "sequence_length": train.sequence_length,
            "lora": train.lora.model_dump(mode="json") if train.method == "lora" else None,
            "precision": train.precision if train.method == "lora" else None,  # `lora.base` unset
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


def trace(
    spec: SweepSpec,
    wanted: Iterable[VariantKey],
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
    missing = _missing(cached, wanted)
    if cached is not None and not missing:
        return cached
    variants = cached.variants if cached else ()
    from workers.tracing.footprints import make_footprint

    with user_code_errors(f"{spec.model.title} cannot be traced"):
        footprint = make_footprint(spec, missing, device=device, digest=digest)
    footprint = replace(footprint, variants=(*variants, *footprint.variants))
    save(folder, footprint)
    return footprint


def cached_trace(spec: SweepSpec, wanted: Iterable[VariantKey], *, device: str) -> Footprint | None:
    """Returns the footprint of the spec's model from the cache; None if a variant is missing.

    Runs no code of the model.

    Raises:
        ModelError: If there is no such model.
    """
    footprint = load(default_folder(), digest_of(spec, device))
    return None if _missing(footprint, wanted) else footprint


def trace_apart(
    spec: SweepSpec, wanted: Iterable[VariantKey], *, device: str, niceness: int = 0
) -> Footprint:
    """Traces in a process of its own, as the code of the user's model may do anything to it.

    `niceness` is added to that of this process.

    Raises:
        UserError: As `trace`, and if that process takes too long or dies.
    """
    wanted = tuple(wanted)
    if (cached := cached_trace(spec, wanted, device=device)) is not None:
        return cached
    request = {
        "spec": spec.model_dump(mode="json"),
        "wanted": [list(variant) for variant in wanted],
        "device": device,
        "niceness": niceness,
    }
    return _adapter().validate_json(run_apart(trace_to_json, request, _TRACE_SECONDS))


def trace_to_json(request: Any) -> bytes:
    """Traces what `trace_apart` asks for, in the process that may run the model's code."""
    os.nice(request["niceness"])
    spec = SweepSpec.model_validate(request["spec"])
    wanted = [VariantKey(*each) for each in request["wanted"]]
    return _adapter().dump_json(trace(spec, wanted, device=request["device"]))


def _missing(cached: Footprint | None, wanted: Iterable[VariantKey]) -> list[VariantKey]:
    variants = cached.variants if cached else ()
    available = {one.key for one in variants}
    return [variant for variant in dict.fromkeys(wanted) if variant not in available]
