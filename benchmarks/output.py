"""What every benchmark says of where it ran, and how it keeps its figures."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.host import package_versions, system_facts


def circumstances() -> dict[str, Any]:
    """Date, processor and versions."""
    facts = system_facts()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": facts["cpu"],
        "cores": facts.get("cores_logical"),
        "versions": dict(package_versions()),
    }


def write(figures: Mapping[str, Any], file: Path | None) -> None:
    """Writes figures and circumstances as JSON, where a file is given."""
    if file is not None:
        file.write_text(json.dumps({**figures, **circumstances()}, indent=2) + "\n", "utf-8")
