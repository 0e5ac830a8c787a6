"""The file of results: a line of JSON for each result, written as soon as it is there.

What ran before there was this file lies in `plans.csv`, whose rows are read as well.
"""

import csv
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE, OLD_FILE = "results.jsonl", "plans.csv"
DONE = "done"
_JUDGED = ("plans", "honesty")  # steps whose plans are like those of any user


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The results in a folder, by step and item."""

    folder: Path

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All results; a last one that was cut short when it was written is left out."""
        file = self.folder / FILE
        text = file.read_text("utf-8") if file.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def add(self, step: str, item: str, figures: Mapping[str, Any]) -> None:
        """Adds a result, which is on disk when this returns."""
        line = json.dumps({"step": step, "item": item, **figures}, default=str) + "\n"
        with (self.folder / FILE).open("a+b") as opened:
            opened.seek(0)
            opened.truncate(opened.read().rfind(b"\n") + 1)  # what was cut short
            opened.write(line.encode())
            opened.flush()
            os.fsync(opened.fileno())

    def has(self, step: str, item: str) -> bool:
        """Returns whether an item of a step has a result."""
        return any(row["step"] == step and row["item"] == item for row in self.rows)

    def has_ended(self, step: str) -> bool:
        """Returns whether a step has all its results."""
        return any(row["step"] == step and row.get("ended") == DONE for row in self.rows)


def troubles(rows: Iterable[Mapping[str, Any]], steps: Sequence[str]) -> Iterator[str]:
    """Says which steps did not end, what failed, and which way of training reached no rate.

    A way whose package is missing has none to reach.
    """
    rows = list(rows)
    for step in steps:
        endings = [row["ended"] for row in rows if row["step"] == step and "ended" in row]
        if DONE not in endings:
            yield f"{step}: {endings[-1] if endings else 'not begun'}"
    yield from (f"{r['step']}, {r['item']}: {r['failed']}" for r in rows if r.get("failed"))
    ways = {(row["step"], row["way"]) for row in rows if "way" in row}
    reached = {
        (r["step"], r["way"]) for r in rows if "way" in r and (r.get("rate") or r.get("missing"))
    }
    yield from (f"{step}: {way} measured no rate" for step, way in sorted(ways - reached))


def plan_rows(folder: Path) -> list[dict[str, str]]:
    """The trials of a folder in the columns of `plans.csv`; what nobody knows has no cell."""
    old = folder / OLD_FILE
    lines = old.read_text("utf-8").splitlines() if old.exists() else []
    trials = (row for row in Results(folder=folder).rows if row["step"] in _JUDGED)
    return [*csv.DictReader(lines), *(_columns(row) for row in trials if "outcome" in row)]


def _columns(row: Mapping[str, Any]) -> dict[str, str]:
    outcome = row["outcome"]
    memory, said = outcome.get("memory") or {}, outcome.get("conditions") or {}
    cells = {
        "model": row["model"],
        "key": row["key"],
        "words": row["words"],
        "outcome": outcome["kind"],
        "step_seconds": (outcome.get("step_seconds") or {}).get("value"),
        "reserved_bytes": memory.get("reserved_bytes"),
        "held_bytes": memory.get("peak_bytes"),
        "device_bytes": said.get("device_memory_bytes"),
        "limit_bytes": memory.get("limit_bytes") or outcome.get("limit_bytes"),
        "device": row["fingerprint"]["device_name"],
        "plan": json.dumps(row["plan"]),
    }
    return {name: "" if value is None else str(value) for name, value in cells.items()}


def number(row: Mapping[str, str], name: str) -> float:
    """A cell as a number; nan where there is none."""
    return float(row.get(name) or "nan")
