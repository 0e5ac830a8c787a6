"""The thorough run comes in parts that a developer can name."""

from pathlib import Path

import pytest

from tests.parts import PARTS, part_of

ROOT = Path(__file__).parents[1]
FILES = [file.relative_to(ROOT).as_posix() for file in (ROOT / "tests").rglob("test_*.py")]


def test_each_file_of_tests_belongs_to_a_part_and_no_prefix_is_left_over() -> None:
    assert {part_of(file) for file in FILES} == set(PARTS)
    prefixes = [prefix for those in PARTS.values() for prefix in those]
    assert [prefix for prefix in prefixes if not any(f.startswith(prefix) for f in FILES)] == []
    assert part_of("tests/orchestrator/export/test_export.py::test_a") == "exports"
    with pytest.raises(LookupError, match=r"elsewhere/test_a\.py belongs to no part"):
        part_of("elsewhere/test_a.py")
