"""An explanation as one value, which is printed and kept as JSON."""

from __future__ import annotations

import json
from typing import Any

from pydantic import TypeAdapter

from orchestrator.explaining.fate import Fate
from orchestrator.explaining.untried import Untried
from orchestrator.explaining.won import Won

Explanation = Won | Fate | Untried
_ADAPTERS: dict[type, TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in (Won, Fate, Untried)}
_KINDS = {Won: "won", Fate: "trial", Untried: "untried"}


def explanation_to_json(explained: Explanation) -> str:
    """As JSON; `explains` says which kind it is."""
    kind = type(explained)
    told = _ADAPTERS[kind].dump_python(explained, mode="json")
    return json.dumps({"explains": _KINDS[kind], **told}, indent=1) + "\n"
