"""Documents that are made from the code, and what all documents have to keep."""

import re
from pathlib import Path

import pytest

from docs.commands import commands_reference
from docs.spec import markdown_reference
from search_spaces.specification.schema import SweepSpec

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = sorted((ROOT / "docs").glob("*.md"))  # of users; docs/internals has the others
FRONT = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
USERS_WORDS, DECISION_WORDS = 22_000, 200  # as `wc -w` counts them


def relative(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def words_in(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").split())


def test_the_reference_of_the_commands_is_up_to_date() -> None:
    written = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")

    assert written == commands_reference(), "renew it: python docs/commands.py > docs/commands.md"


def test_the_reference_of_the_specification_is_up_to_date_and_names_every_key() -> None:
    text, written = markdown_reference(), (ROOT / "docs" / "spec.md").read_text(encoding="utf-8")

    assert written == text, "renew it: python docs/spec.py > docs/spec.md"
    for name, field in SweepSpec.model_fields.items():
        section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        for key in getattr(field.annotation, "model_fields", ()):
            assert f"\n- `{key}`" in section
    assert not re.search("<class|typing\\.", text)


@pytest.mark.parametrize("file", [*FRONT, *DOCS], ids=relative)
def test_what_a_document_names_is_there(file: Path) -> None:
    """Paths of this repository, in backquotes or links, exist; links end at a heading."""
    text = file.read_text(encoding="utf-8")
    named = re.findall(r"`((?:orchestrator|workers|search_spaces|tests|docs)/[\w./-]+)`", text)
    missing = [name for name in named if not (ROOT / name).exists()]
    linked = re.findall(r"\]\((?!https?:)([^)#]+)\)", text)
    missing += [link for link in linked if not (file.parent / link).exists()]
    for link, anchor in re.findall(r"\]\((?!https?:)([^)#]*\.md)?#([^)]+)\)", text):
        other = (file.parent / link if link else file).read_text(encoding="utf-8")
        heads = re.findall(r"^#+ (.+)$", other, flags=re.MULTILINE)
        if anchor not in {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads}:
            missing.append(f"{link}#{anchor}")

    assert not missing


def test_the_list_of_pages_and_the_sites_navigation_have_them_all() -> None:
    text = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    pages = {file.name for file in PAGES} - {"README.md"}

    assert pages <= set(re.findall(r"\]\(([\w.-]+\.md)\)", text))
    assert sorted({"README.md", *pages}) == sorted(re.findall(r": ([\w.-]+\.md)", navigation))


def test_the_readme_is_read_in_a_few_minutes() -> None:
    """Longer texts go to pages of their own; the first screen has the two commands."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()

    assert len(lines) <= 85
    assert {"make demo", "make test"} <= {line.partition("#")[0].strip() for line in lines[:20]}


def test_decisions_are_numbered_without_a_gap_and_take_half_a_page() -> None:
    decisions = [file for file in DOCS if re.match(r"\d{4}-", file.name)]

    assert [int(file.name[:4]) for file in decisions] == list(range(1, len(decisions) + 1))
    assert [relative(file) for file in decisions if words_in(file) > DECISION_WORDS] == []


def test_the_users_pages_stay_within_their_budget() -> None:
    assert sum(map(words_in, [ROOT / "README.md", *PAGES])) <= USERS_WORDS, "say what leaves"
