"""The legal plans of a specification on this machine."""

import numpy as np

from search_spaces.facts import ClusterFacts
from search_spaces.plan_table import KNOB_NAMES, PlanTable
from search_spaces.rules.base import RuleContext
from search_spaces.space import Space, build_space
from search_spaces.specification.schema import SweepSpec

FOLLOWS = "accumulation"  # from the other knobs


def space_of(spec: SweepSpec, here: ClusterFacts | None = None) -> Space:
    """Returns the space of a specification that names its device and its number of ranks.

    Args:
        spec: The specification.
        here: Facts of another machine than this one.

    Raises:
        ValueError: If the number of ranks is not named.
    """
    from workers.prepare import prepare
    from workers.probe.doctor import lacks

    ranks, device = spec.cluster.workers, spec.cluster.device
    if ranks == "auto":
        raise ValueError("the benchmark needs cluster.workers to be a number")
    here = here or ClusterFacts(
        device=device,
        slots=ranks,
        memory_limit_bytes=spec.memory_limit_bytes,
        lacks=lacks(device),
    )
    return build_space(RuleContext(spec=spec, model=prepare(spec), cluster=here), ranks)


def varying(table: PlanTable) -> tuple[str, ...]:
    """Returns the knobs that tell plans apart, but for the one that follows from the others."""
    names = (name for name in KNOB_NAMES if name != FOLLOWS)
    return tuple(name for name in names if np.ptp(table.codes[name]) > 0)
