"""Results of a part, as JSON, as CSV and as the short table that is printed last."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from benchmarks.gpu.verdicts import Verdict
from benchmarks.output import circumstances
from orchestrator.cli.console import table_console
from orchestrator.host import system_facts
from orchestrator.report.sweep_tables import plain_table

Cells = Mapping[str, Any]
HOLDS = {True: "holds", False: "MISSED", None: "not judged"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Figures of a part, its rows, and what they say of its targets.

    `shown` are the names of the columns that the printed table has. `left` says what is still to
    be measured, by the same command once more; empty: nothing.
    """

    figures: Mapping[str, Any]
    rows: Sequence[Cells]
    shown: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    left: str = ""


def header(device: str) -> dict[str, Any]:
    """Date, device, driver and versions of a measurement; `device` is "cuda" or "cpu"."""
    gpus = system_facts()["gpus"]
    told: dict[str, Any] = {"device": device}
    if device == "cuda" and gpus:
        told |= {"gpu": gpus[0]["name"], "driver": gpus[0]["driver"], "gpus": gpus}
    return told | circumstances()


def write(found: Found, part: str, folder: Path, *, tiny: bool, device: str) -> None:
    """Writes `part.json`, and `part.csv` where there are rows."""
    folder.mkdir(parents=True, exist_ok=True)
    told = {
        "part": part,
        "tiny": tiny,
        "left": found.left,
        "verdicts": [verdict.as_dict() for verdict in found.verdicts],
        **found.figures,
        **header(device),
    }
    (folder / f"{part}.json").write_text(json.dumps(told, indent=2) + "\n", "utf-8")
    if found.rows:
        (folder / f"{part}.csv").write_text(as_csv(found.rows), "utf-8")


def as_csv(rows: Sequence[Cells]) -> str:
    """Rows as CSV, with a column for each name that any of them has; None is an empty cell."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: "" if v is None else v for name, v in row.items()} for row in rows)
    return text.getvalue()


def show(found: Found, *, tiny: bool, most: int = 12, console: Console | None = None) -> None:
    """Prints some rows, then the targets: what was asked, what was reached, whether that holds."""
    to = console or table_console()
    if found.rows:
        table = plain_table(*((name, _is_numeric(found.rows, name)) for name in found.shown))
        for row in found.rows[:most]:
            table.add_row(*(Text(_cell(row.get(name))) for name in found.shown))
        to.print(table)
        if len(found.rows) > most:
            to.print(f"... {len(found.rows)} rows in all: the CSV file has them")
    if tiny:
        to.print("tiny sizes on a CPU: that the program runs is shown, its figures mean nothing")
    targets = plain_table(("target", False), ("asked", False), ("reached", False), ("", False))
    for verdict in found.verdicts:
        cells = (verdict.what, verdict.asked, verdict.reached or "-", HOLDS[verdict.holds])
        targets.add_row(*map(Text, cells))
    to.print(targets)
    if found.left:
        to.print(Text(f"not complete: {found.left}; the same command goes on"))


def _is_numeric(rows: Sequence[Cells], name: str) -> bool:
    return any(isinstance(row.get(name), int | float) for row in rows)


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
