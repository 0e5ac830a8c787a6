"""Documents that are made from the code, and what all documents have to keep."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from search_spaces.spec.reference import markdown_reference
from search_spaces.spec.schema import SweepSpec

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").rglob("*.md"))


def relative(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def test_the_reference_of_the_specification_is_up_to_date() -> None:
    written = (ROOT / "docs" / "spec.md").read_text(encoding="utf-8")

    assert written == markdown_reference(), (
        "renew it: python -m search_spaces.spec.reference > docs/spec.md"
    )


def test_the_reference_names_every_key() -> None:
    text = markdown_reference()
    for name, field in SweepSpec.model_fields.items():
        section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        for key in field.annotation.model_fields:  # type: ignore[union-attr]
            assert f"| `{key}` |" in section
    assert "<class" not in text
    assert "typing." not in text


@pytest.mark.parametrize("file", DOCS, ids=relative)
def test_what_a_document_names_is_there(file: Path) -> None:
    """Paths of this repository, in backquotes or links, exist."""
    text = file.read_text(encoding="utf-8")
    named = re.findall(r"`((?:orchestrator|workers|search_spaces|tests|docs)/[\w./-]+)`", text)
    missing = [name for name in named if not (ROOT / name).exists()]
    linked = re.findall(r"\]\((?!https?:)([^)#]+)\)", text)
    missing += [link for link in linked if not (file.parent / link).exists()]

    assert not missing


def test_decisions_are_numbered_without_a_gap() -> None:
    numbers = sorted(int(file.name[:4]) for file in DOCS if re.match(r"\d{4}-", file.name))

    assert numbers == list(range(1, len(numbers) + 1))
