"""The table of all comparisons, as it is kept in `benchmarks/results`."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.output import write
from tests.workers.parity.comparison import TOLERANCES, Compared

Table = dict[str, dict[str, dict[str, Any]]]  # fields of a comparison by model, and by layout


def words_of(row: Compared) -> str:
    """Returns a comparison in words: ending and difference, or ending and sentence."""
    return f"{row.ending} {row.detail if row.apart is None else f'{row.apart:.1e}'}".rstrip()


def table_of(compared: Iterable[Compared]) -> Table:
    """Returns the table of comparisons."""
    table: Table = {}
    for row in compared:
        fields: dict[str, Any] = {"ending": row.ending}
        if row.apart is not None:
            fields |= {"quantity": row.quantity, "apart": float(f"{row.apart:.1e}")}
        if row.detail:
            fields["detail"] = row.detail
        table.setdefault(f"{row.task} {row.model}", {})[row.layout or "model"] = fields
    return table


def read_table(file: Path) -> Table:
    """Returns the table of a file; an empty one if there is no file."""
    table: Table = json.loads(file.read_text("utf-8"))["models"] if file.exists() else {}
    return table


def merged(kept: Table, added: Table) -> Table:
    """Returns a table in which the added rows replace those of the same model and layout."""
    models = [*kept, *(model for model in added if model not in kept)]
    return {model: {**kept.get(model, {}), **added.get(model, {})} for model in models}


def summary(table: Table) -> dict[str, Any]:
    """Returns endings, and by quantity the largest difference of plans that train the same."""
    rows = [row for layouts in table.values() for row in layouts.values()]
    largest: dict[str, float] = {}
    for row in rows:
        if row["ending"] == "same":
            quantity = row["quantity"]
            largest[quantity] = max(largest.get(quantity, 0.0), row["apart"])
    return {
        "endings": dict(Counter(row["ending"] for row in rows)),
        "largest_of_the_same": largest,
        "tolerances": dict(TOLERANCES),
    }


def write_table(table: Table, file: Path | None) -> None:
    """Writes the table with its summary, where a file is given."""
    write({**summary(table), "models": table}, file)
