"""What a model costs, found by tracing the worker's own step without memory.

Importing this module imports no framework, so that a cached footprint is read at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from search_spaces.costs.footprint import Compute, Footprint, Split
from search_spaces.plan import Attention
from search_spaces.spec.schema import SweepSpec
from workers.models.user_code import users_code
from workers.tracing.cache import default_folder, digest_of, load, save

Wanted = tuple[Attention, Compute, Split]


def trace(
    spec: SweepSpec,
    wanted: Iterable[Wanted],
    *,
    device: str = "cuda",
    cache: Path | None = None,
) -> Footprint:
    """The footprint of the spec's model, with at least the wanted variants.

    Samples are as long as the longest of the spec's data. What is cached is read; what is traced
    is cached. Flash attention is traced as sdpa, whose kernels keep and do the same. A function
    of the user's chooses its own attention, which stands for each that is asked for.

    Args:
        spec: Model, adapters, data and sequence length count.
        wanted: Attention, way to compute and way to split of each variant.
        device: "cuda" or "cpu": whose kernels and whose autocast are meant.
        cache: The folder of cached footprints; None: the user's own
            (`$XDG_CACHE_HOME/plimsoll/footprints`).

    Raises:
        ModelError: If the model cannot be found, built or split so, or if it cannot run without
            values; names the operator and says how to register a substitute. Whatever else its
            code raises is told in one sentence too.
        DataError: If the spec's data cannot be read.
    """
    folder = default_folder() if cache is None else cache
    digest = digest_of(spec, device)
    known = load(folder, digest)
    there = {(v.attention, v.compute, v.split) for v in known.variants} if known else set()
    missing = [one for one in dict.fromkeys(wanted) if one not in there]
    if known is not None and not missing:
        return known
    from workers.tracing.footprints import make_footprint

    with users_code(f"{spec.model.name} cannot be traced"):
        made = make_footprint(spec, missing, device=device, digest=digest)
    if known is not None:
        made = replace(made, variants=(*known.variants, *made.variants))
    save(folder, made)
    return made
