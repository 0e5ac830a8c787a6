"""The first input of a controller that a benchmark drives."""

from __future__ import annotations

from pathlib import Path

from orchestrator.core.inputs import DriverStarted
from orchestrator.core.placement import CapacityRequest
from orchestrator.study.study import Study
from search_spaces.facts import ClusterFacts
from search_spaces.space import Space
from search_spaces.spec.schema import SweepSpec


def driver_started(
    study: Study,
    name: str,
    spec: SweepSpec,
    space: Space,
    cluster: ClusterFacts,
    request: CapacityRequest,
    at: float,
) -> DriverStarted:
    """A driver that opened a study, with as many groups as it requests room for."""
    return DriverStarted(
        study=name,
        spec=spec,
        space=space,
        records=study.records(),
        validations=study.validations(),
        interrupted=study.interrupted(),
        untried=tuple(study.untried_counts().items()),
        memory_limit_bytes=cluster.memory_limit_bytes,
        device=cluster.device,
        folder=str(Path.cwd()),
        max_groups=request.groups,
        requests=(request,),
        at=at,
    )
