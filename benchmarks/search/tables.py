"""Tables of measurements as grids: which rows belong together, and what was measured of each."""

import csv
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.published.cells import COLUMNS, Row, UnusableRowError
from benchmarks.published.reader import SETS_FILE
from search_spaces.errors import UserError

_SETS = "ranking_sets"
_FAILED = re.compile(r"run[ _-]?failed|r_cost\s*=\s*inf", re.IGNORECASE)
_CONTRADICTS = re.compile(r"\b(CHECK|IMPLAUSIBLE)\b")
_RAN = ("", "measured")  # outcomes
_SPEEDS = ("samples_per_s", "tokens_per_s_per_gpu", "tflops_per_gpu")
_FIXED = ("model", "gpu", "n_gpus", "seq_len")  # what rows of one grid share


class SurfacesError(UserError):
    """A place without tables, or a table that cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entry:
    """A row that was measured or is known to be infeasible.

    `rate` is its throughput in the unit that all rows of the grid share, None if infeasible.
    """

    line: int  # in the file, its header is line 1
    row: Row
    rate: float | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grid:
    """Rows that are points of one space; `unit` is the column that tells their throughput."""

    name: str
    file: Path
    header: tuple[str, ...]
    entries: tuple[Entry, ...]
    unit: str


def grids_in(place: Path) -> Iterator[Grid]:
    """The grids of a folder of tables, or of one.

    Rows that share an id in the column `ranking_sets` are one; a table without any id is one as a
    whole, if it is about one model on one kind and count of devices at one length.

    Raises:
        SurfacesError: If there is no table, or one cannot be read.
    """
    if place.is_dir():
        files = sorted(file for file in place.glob("*.csv") if file.name != SETS_FILE)
        if not files:
            raise SurfacesError(f"{place} has no table: it should hold .csv files")
    elif place.is_file():
        files = [place]
    else:
        raise SurfacesError(f"{place} is no directory and no table")
    for file in files:
        header, rows = _read(file)
        found = _sets_of(file, rows)
        for name, members in found.items():
            named = file.stem if len(found) == 1 else f"{file.stem}/{name}"
            if (grid := _grid(named, file, header, members)) is not None:
                yield grid


def failed(row: Row) -> bool:
    """Returns whether a row tells of a candidate that cannot run."""
    return row.text("oom") == "true" or _FAILED.search(row.written("notes")) is not None


def number(row: Row, column: str) -> float | None:
    """A cell as a number above 0; None for anything else."""
    try:
        return row.number(column) or None
    except UnusableRowError:
        return None


def _read(file: Path) -> tuple[tuple[str, ...], list[tuple[int, Row]]]:
    try:
        with file.open(encoding="utf-8", newline="") as opened:
            reader = csv.DictReader(opened)
            header = tuple(reader.fieldnames or ())
            rows = [
                (line, Row(dict.fromkeys(COLUMNS, "") | cells))
                for line, cells in enumerate(reader, start=2)
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SurfacesError(f"{file} cannot be read as a table: {error}") from error
    return header, [
        (line, row) for line, row in rows if not _CONTRADICTS.search(row.written("notes"))
    ]


def _sets_of(
    file: Path, rows: Sequence[tuple[int, Row]]
) -> Mapping[str, Sequence[tuple[int, Row]]]:
    found: dict[str, list[tuple[int, Row]]] = defaultdict(list)
    for line, row in rows:
        for name in re.split(r"[;,\s]+", row.written(_SETS)):
            if name:
                found[name].append((line, row))
    if found:
        return found
    alike = len({tuple(row.text(name) for name in _FIXED) for _, row in rows}) == 1
    return {file.stem: rows} if alike else {}


def _grid(
    name: str, file: Path, header: tuple[str, ...], members: Sequence[tuple[int, Row]]
) -> Grid | None:
    """The rows of a set that say something; None if nothing was measured."""
    told = {
        unit: sum(number(row, unit) is not None for _, row in members if not failed(row))
        for unit in _SPEEDS
    }
    unit = max(told, key=lambda column: told[column])
    if not told[unit]:
        return None
    entries = []
    for line, row in members:
        rate = None if failed(row) else number(row, unit)
        if rate is not None or failed(row) or row.text("outcome") not in _RAN:
            entries.append(Entry(line=line, row=row, rate=rate))
    return Grid(name=name, file=file, header=header, entries=tuple(entries), unit=unit)
