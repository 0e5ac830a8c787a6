"""`knobs_reference`: `docs/knobs.md` is up to date, and names every knob and rule."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest

from search_spaces.knobs.labels import KNOB_DOCS
from search_spaces.knobs.registry import KNOBS, Knob, always
from search_spaces.plan import CHOICES, Engine, Plan
from search_spaces.rules.knob_reference import knobs_reference, rules_of
from search_spaces.rules.registry import RULES
from tests.search_spaces.values import a_plan, a_spec, around

PAGE = Path(__file__).parents[3] / "docs" / "knobs.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == knobs_reference(), (
        "renew it: python -m search_spaces.rules.knob_reference > docs/knobs.md"
    )


def test_every_knob_has_a_row_and_every_rule_is_named() -> None:
    text = knobs_reference()

    assert all(text.count(f"\n| `{knob.name}` |") == 1 for knob in KNOBS)
    assert set(KNOB_DOCS) == {knob.name for knob in KNOBS}
    assert [rule for rule in RULES if f"`{rule}`" not in text] == []
    columns = {line.count(" | ") for line in text.splitlines() if line.startswith("|")}
    assert len(columns) == 1


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.name)
def test_its_words_agree_with_the_knob(knob: Knob) -> None:
    words = KNOB_DOCS[knob.name]
    values = CHOICES.get(knob.name, (1, 2))
    lossy = [value for value in values if knob.lossy(value, a_spec())]

    assert bool(words.lossy) == bool(lossy)
    assert bool(words.is_active) == (knob.is_active is not always)
    assert words.engines in ("both", *get_args(Engine))


class Recorded:
    """A plan that records which knobs are read."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.read.add(name)
        return getattr(self.plan, name)


@cache
def named_by(rule: str) -> set[str]:
    """Returns the knobs in whose rows the page names a rule."""
    return {knob for knob, rules in rules_by_knob().items() if rule in rules}


@cache
def rules_by_knob() -> dict[str, tuple[str, ...]]:
    return {knob: tuple(rules_of(knob)) for knob in Plan.__dataclass_fields__}


@pytest.mark.parametrize("name", [name for name in RULES if name != "knob_at_default"])
def test_a_rule_reads_no_knob_unseen(name: str) -> None:
    """The page lists knobs by a rule's source, so a rule may not read them through a helper."""
    recorded = Recorded(a_plan(tensor=2, pipeline=2, engine="deepspeed", compile=True))

    RULES[name](recorded, around())  # type: ignore[arg-type]

    assert recorded.read <= named_by(name)
