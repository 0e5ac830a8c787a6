"""Results that the study's database did not take: kept in a file until the study is opened again.

A result is minutes of measuring, and a database may be away for longer than a sweep can wait.
"""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.study.records import record_from_json, record_to_json
from search_spaces.record import Record
from search_spaces.spec.schema import SweepSpec

UNTOLD_FILE = "untold.jsonl"  # in the study's folder


def untold_file(spec: SweepSpec, name: str) -> Path:
    """Where they are kept."""
    return Path(spec.study.folder) / name / UNTOLD_FILE


def keep_untold(file: Path, record: Record) -> bool:
    """Adds a record; False if the file cannot be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as opened:
            opened.write(json.dumps(record_to_json(record)) + "\n")
    except OSError:
        return False
    return True


def read_untold(file: Path) -> tuple[Record, ...]:
    """The records that wait, in the order in which they came; a line cut short is none."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ()
    whole = text[: text.rfind("\n") + 1]
    return tuple(record_from_json(json.loads(line)) for line in whole.splitlines())
