"""`knobs_reference`: `docs/knobs.md` is up to date, and names every knob and rule."""

from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest

from docs.knobs import knobs_reference, rules_of, words_on
from search_spaces.knobs.knob import Knob, always
from search_spaces.knobs.registry import KNOBS
from search_spaces.plan import CHOICES, Engine, Plan
from search_spaces.rules.registry import RULES
from tests.plans import ddp_plan
from tests.search_spaces.knob_pairs import pairs_of
from tests.search_spaces.values import a_spec, around

PAGE = Path(__file__).parents[3] / "docs" / "knobs.md"


def named(knob: Knob) -> str:
    return knob.name


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == knobs_reference(), (
        "renew it: python docs/knobs.py > docs/knobs.md"
    )


def test_every_knob_has_a_heading_and_every_rule_is_named() -> None:
    text = knobs_reference()

    assert all(text.count(f"\n### `{knob.name}`\n") == 1 for knob in KNOBS)
    assert [rule for rule in RULES if f"`{rule}`" not in text] == []


@pytest.mark.parametrize("knob", KNOBS, ids=named)
def test_its_words_agree_with_the_knob(knob: Knob) -> None:
    values = CHOICES.get(knob.name, (1, 2))
    lossy = [value for value in values if knob.lossy(value, a_spec())]
    words = words_on(knob)

    if knob.name in ("precision", "micro_batch"):  # by the specification
        assert words["lossy_values"].startswith(f"all but `train.{knob.name}`")
    else:
        assert words.get("lossy_values", "") == ", ".join(map(str, lossy)).lower()
    assert ("active" in words) == (knob.is_active is not always)


@pytest.mark.parametrize("knob", [knob for knob in KNOBS if knob.name != "engine"], ids=named)
def test_the_engines_in_its_row_are_those_that_have_it(knob: Knob) -> None:
    """Plans of other engines may not differ in it."""
    engines = {pair.before.engine for pair in pairs_of(knob.name)}
    word = words_on(knob).get("engine")

    assert engines == ({word} if word else {*get_args(Engine)})


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
    recorded = Recorded(ddp_plan(tensor=2, pipeline=2, engine="deepspeed", compile=True))

    RULES[name](recorded, around())  # type: ignore[arg-type]

    assert recorded.read <= named_by(name)
