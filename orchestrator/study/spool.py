"""Spool of a study: results that its driver could not write to an unavailable database."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import final

from orchestrator.core.records import Record
from orchestrator.study.serialization import record_from_json, record_to_json
from search_spaces.errors import StudyError
from search_spaces.spec.failpoints import Step, step
from search_spaces.spec.files import LOG_BYTES, append_durably, read_bounded, sync_folder
from search_spaces.spec.schema import SweepSpec

SPOOL_FILE = "spool.jsonl"  # in the study's folder
SET_ASIDE_FILE = "spool.set-aside.jsonl"  # lines that no trial of the study takes


@final
class Spool:
    """File with a record a line, which the next driver of the study reads. No line is ever lost."""

    def __init__(self, spec: SweepSpec, name: str) -> None:
        folder = Path(spec.study.folder) / name
        self.file, self._set_aside = folder / SPOOL_FILE, folder / SET_ASIDE_FILE

    def add(self, record: Record) -> bool:
        """Appends a record, which is on disk when this returns; returns False if that fails."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            append_durably(self.file, json.dumps(record_to_json(record)))
        except OSError:
            return False
        return True

    def lines(self) -> tuple[tuple[bytes, Record | None], ...]:
        """Returns each line with its record; None for one that is torn or of another form.

        Raises:
            OSError: If the file is there and cannot be read.
        """
        try:
            content = read_bounded(self.file, LOG_BYTES)
        except FileNotFoundError:
            return ()
        return tuple((line, _record(line)) for line in content.splitlines() if line.strip())

    def clear(self, set_aside: Sequence[bytes]) -> str | None:
        """Removes the file, after lines that were not used are in another one.

        Returns:
            A sentence about those lines; None if there are none.

        Raises:
            OSError: If they cannot be written; the file then stays.
        """
        for line in set_aside:
            append_durably(self._set_aside, line)
        if self.file.exists():
            with step(Step.SPOOL_REMOVE):
                self.file.unlink()
                sync_folder(self.file.parent)
        if not set_aside:
            return None
        lines = "1 line" if len(set_aside) == 1 else f"{len(set_aside)} lines"
        return (
            f"{lines} of {self.file} cannot be stored (incomplete, or of a trial that is not under"
            f" way in this study): set aside in {self._set_aside}"
        )


def _record(line: bytes) -> Record | None:
    try:
        return record_from_json(json.loads(line))
    except (ValueError, RecursionError, StudyError):
        return None
