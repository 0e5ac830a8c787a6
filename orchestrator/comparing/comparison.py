"""A comparison as JSON."""

from __future__ import annotations

import json

from pydantic import TypeAdapter

from orchestrator.comparing.plans import PlansCompared
from orchestrator.comparing.studies import StudiesCompared

_PLANS: TypeAdapter[PlansCompared] = TypeAdapter(PlansCompared)
_STUDIES: TypeAdapter[StudiesCompared] = TypeAdapter(StudiesCompared)


def comparison_to_json(told: PlansCompared | StudiesCompared) -> str:
    """As JSON; `compares` says whether plans or studies."""
    if isinstance(told, PlansCompared):
        tree = {"compares": "plans", **_PLANS.dump_python(told, mode="json")}
    else:
        tree = {"compares": "studies", **_STUDIES.dump_python(told, mode="json")}
    return json.dumps(tree, indent=1) + "\n"
