"""Columns of a table that are knobs.

A recording has a column for each knob of a plan, and says some of them again in the columns that
all published tables have. A published table has those alone.
"""

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.published.cells import Row
from search_spaces.plan_table import KNOB_NAMES

Columns = Mapping[str, Sequence[str]]
# what a set may vary, of the columns that every table has
PUBLISHED_KNOBS = (
    *("precision", "optimizer", "sharding", "offload", "ckpt", "attn_impl", "compile"),
    *("tp", "pp", "dp", "cp_or_sp", "micro_batch", "grad_accum", "global_batch"),
    *("n_gpus", "seq_len"),
)
_OWN = tuple(name for name in KNOB_NAMES if name not in PUBLISHED_KNOBS)
_FOLLOW = ("accumulation", "data")  # from a plan's other knobs
# by surface, those that follow from its others
_FOLLOW_IN: Mapping[str, tuple[str, ...]] = {
    "atorch/S038": ("attn_impl",),
    "bigscience/S002": ("pp", "dp"),
    **dict.fromkeys(("bigscience/S006", "bigscience/S010", "misc/S111"), ("dp",)),
    **dict.fromkeys(("vtrain/S001", "vtrain/S004", "vtrain/S005"), ("dp",)),
    "hf_docs_blogs/S011": ("grad_accum",),
}


def knobs_of(name: str, rows: Sequence[Row], header: Iterable[str]) -> Columns:
    """The knobs that vary among rows, with their values.

    Args:
        name: The surface.
        rows: Those that were measured or are infeasible.
        header: All columns.
    """
    there = [*dict.fromkeys(header)]
    if any(column in _OWN for column in there):
        known = {*KNOB_NAMES} - {*_FOLLOW}
    else:
        known = {*PUBLISHED_KNOBS} - {*_FOLLOW_IN.get(name, ())}
    named = sorted(known.intersection(there), key=lambda one: (one in _OWN, there.index(one)))
    columns = {column: [value_of(row, column) for row in rows] for column in named}
    return {column: cells for column, cells in columns.items() if len({*cells}) > 1}


def value_of(row: Row, name: str) -> str:
    """A cell with its number in one form: 1 and 1.0 are one value."""
    text = row.text(name)
    try:
        return f"{float(text) + 0.0:.10g}"
    except ValueError:
        return text
