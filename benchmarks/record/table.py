"""The table of a recording on disk: rows are added as they come, and found again later."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.record.order import Turn
from benchmarks.record.rows import Cells, header, knob_cells
from search_spaces.errors import UserError
from search_spaces.spec.files import append_durably, write_durably
from search_spaces.spec.load import spec_to_yaml
from search_spaces.spec.schema import SweepSpec
from search_spaces.spec.sections import KEYS_OUTSIDE_MEASUREMENT

# What a measurement depends on; budget, study and tracking may change between two runs
_SECTIONS = ("model", "data", "cluster", "train", "space", "objective")
_OF_OBJECTIVE = {"interval", "min_steps", "max_steps", "max_seconds"}  # the rest compares plans
_ID_DIGITS = 8
_FIRST_MIN_STEPS = 6  # the default when the first tables were recorded, which do not name it


class RecordingError(UserError):
    """A table that cannot be written, or that belongs to another recording."""


def set_id(spec: SweepSpec, name: str) -> str:
    """Returns the id of all rows of a recording: another specification has another one."""
    canonical = json.dumps(_measured_by(spec), sort_keys=True, separators=(",", ":"))
    return f"{name}-{hashlib.sha256(canonical.encode()).hexdigest()[:_ID_DIGITS]}"


def _measured_by(spec: SweepSpec) -> dict[str, Any]:
    """Returns the keys that differ from defaults: a new key leaves old tables as they are."""
    sections = {name: getattr(spec, name) for name in _SECTIONS}
    measured = {
        name: section.model_dump(
            mode="json",
            exclude_defaults=True,
            include=_OF_OBJECTIVE if name == "objective" else None,
            exclude=set(KEYS_OUTSIDE_MEASUREMENT) if name == "cluster" else None,
        )
        for name, section in sections.items()
    }
    measured["objective"].pop("min_steps", None)
    if spec.objective.min_steps != _FIRST_MIN_STEPS:
        measured["objective"]["min_steps"] = spec.objective.min_steps
    return measured


def kept_spec(table: Path) -> Path:
    """Returns the file of a table's specification, which lies next to it."""
    return table.with_suffix(".yaml")


def keep_spec(spec: SweepSpec, name: str, table: Path) -> None:
    """Writes the specification beside the table, unless one stands there."""
    kept = kept_spec(table)
    if not kept.exists():
        named = spec.model_copy(update={"study": spec.study.model_copy(update={"name": name})})
        write_durably(kept, spec_to_yaml(named))


class Table:
    """A CSV file that grows by a row for each measurement."""

    def __init__(self, path: Path, set_id: str) -> None:
        """Reads what is there.

        Args:
            path: The CSV file.
            set_id: The specification that its rows belong to.

        Raises:
            RecordingError: If it is no table of this recording, or there is no place for one.
        """
        if path.suffix != ".csv":
            raise RecordingError(f"{path}: the name of a table must end in .csv")
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RecordingError(f"{path} cannot be written: {error.strerror}") from None
        self._header, self.rows = _read(path)
        if any(row["ranking_sets"] != set_id for row in self.rows):
            raise RecordingError(
                f"{path} was recorded with another specification: name another file by --out,"
                " or delete it"
            )

    def begin(self, knobs: Sequence[str]) -> None:
        """Writes the header, or compares it.

        Raises:
            RecordingError: If the file has other columns, or cannot be written.
        """
        wanted = header(knobs)
        if self._header and self._header != wanted:
            odd = ", ".join(sorted({*self._header} ^ {*wanted}))
            raise RecordingError(
                f"{self.path} has other columns than this recording ({odd}): name another file by"
                " --out, or delete it"
            )
        if not self._header:
            self._header = wanted
            self._append(dict(zip(wanted, wanted, strict=True)))

    def missing(self, order: Sequence[Turn], knobs: Sequence[str]) -> tuple[Turn, ...]:
        """The turns that have no row yet.

        Raises:
            RecordingError: If there are rows of plans that have no turn.
        """
        done = {(row["repeat"], *(row[name] for name in knobs)) for row in self.rows}
        wanted = [(str(turn.repeat), *knob_cells(turn.plan, knobs)) for turn in order]
        strange = {key[1:] for key in done} - {key[1:] for key in wanted}
        if strange:
            raise RecordingError(
                f"{self.path} has rows of plans that are not asked for ({len(strange):,}): give the"
                " same --limit, or name another file by --out"
            )
        return tuple(turn for turn, key in zip(order, wanted, strict=True) if key not in done)

    def add(self, row: Cells) -> None:
        """Appends a row, which is on disk when this returns."""
        self.rows.append(row)
        self._append(row)

    def _append(self, row: Cells) -> None:
        line = io.StringIO()
        csv.DictWriter(line, self._header, restval="", lineterminator="").writerow(row)
        append_durably(self.path, line.getvalue())


def _read(path: Path) -> tuple[tuple[str, ...], list[Cells]]:
    """Header and rows; a last row that was cut short when it was written is taken away."""
    if not path.exists():
        return (), []
    try:
        text = path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            write_durably(path, whole)
        reader = csv.DictReader(whole.splitlines())
        rows = list(reader)
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise RecordingError(f"{path} is no table: {error}") from None
    names = tuple(reader.fieldnames or ())
    if names and ("ranking_sets" not in names or "repeat" not in names):
        raise RecordingError(f"{path} is no recording: it has no columns ranking_sets and repeat")
    if any(None in row or None in row.values() for row in rows):
        raise RecordingError(f"{path} is no table: a row has not as many cells as its header")
    return names, rows
