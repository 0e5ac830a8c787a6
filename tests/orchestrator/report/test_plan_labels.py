"""Names of plans: short and distinct."""

from dataclasses import fields

import pytest

from docs.knobs import words_on
from orchestrator.report.labels import _LOSSY_WORDS, _WORDS, fixed_knobs, fixed_words, plan_words
from search_spaces.knobs.registry import KNOBS
from search_spaces.plan import Plan
from tests.orchestrator.records import make_plan, make_space, make_spec
from tests.search_spaces.knob_pairs import KNOB_NAMES, Planted, pairs_of


def test_a_plan_reads_as_a_person_would_say_it() -> None:
    plan = make_plan(accumulation=4)

    assert plan_words(plan) == "ddp micro 4 x 4 ckpt 50 % sdpa packed fp32"
    mixed = make_plan(accumulation=4, selective_blocks=2, offloaded_blocks=1)
    assert plan_words(mixed) == (
        "ddp micro 4 x 4 ckpt 50 % (2 selective + 1 on host) sdpa packed fp32"
    )
    assert plan_words(make_plan(zero_stage=3, checkpoint_ratio=0.0)) == (
        "fsdp zero3 micro 4 x 2 sdpa packed fp32"
    )


def test_what_all_plans_share_is_said_once() -> None:
    space = make_space(make_spec(space={"attention": ["sdpa"], "batching": ["padded"]}))

    assert fixed_words(space) == "sdpa padded fp32"
    assert plan_words(space.baseline, omit=fixed_knobs(space)) == "ddp micro 1 x 8"


def without_words(plan_type: type[Plan]) -> list[str]:
    """Returns a sentence for each knob that tables do not name.

    Data ranks and accumulation follow from the global batch and the other words.
    """
    named = {name for names, _ in _WORDS for name in names}
    return [
        f"{each.name}: no word in tables. Give its Knob in search_spaces/knobs/ a `label`, or add"
        " it to `_WORDS` in orchestrator/report/labels.py, in the word of knobs that it goes with"
        for each in fields(plan_type)
        if each.name not in named | {"data", "accumulation"}
    ]


def test_every_knob_has_a_word() -> None:
    assert not (found := without_words(Plan)), "\n".join(found)


def test_a_new_knob_without_a_label_is_found() -> None:
    found = without_words(Planted)[-1]

    assert found.startswith("static_graph: no word in tables. Give its Knob")


@pytest.mark.parametrize("knob", KNOB_NAMES)
def test_plans_that_differ_in_a_knob_have_different_names(knob: str) -> None:
    same = {
        words
        for pair in pairs_of(knob)
        if (words := plan_words(pair.before)) == plan_words(pair.after)
    }

    assert not same, f"{knob} changes no label: {same}"


def test_every_lossy_knob_has_words() -> None:
    assert set(_LOSSY_WORDS) == {knob.name for knob in KNOBS if words_on(knob).get("lossy_values")}
