"""Every knob in forecasts: it changes what a forecast is made of, or says that it does not."""

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
import pytest

from search_spaces.costs.plan_encoding import plan_features, variants_of
from search_spaces.costs.plan_features import PlanFeatures
from search_spaces.knobs.knob import Knob
from search_spaces.knobs.registry import KNOBS
from search_spaces.plan_table import PlanTable
from tests.search_spaces.costs.values import FACTS, FOOTPRINT, a_variant
from tests.search_spaces.knob_pairs import Pair, Planted, pairs_of, plan_of


def features_of(pair: Pair) -> PlanFeatures:
    """Returns the features of both plans, of a model with samples of many lengths."""
    table = PlanTable.of(pair.plans)
    variants = tuple(
        replace(a_variant(key.compute, key.split), **key._asdict()) for key in variants_of(table)
    )
    lengths = (100, 200, 400, 1024)
    footprint = replace(FOOTPRINT, variants=variants, varied=True, lengths=lengths, row_tokens=1024)
    return plan_features(table, FACTS, footprint)


def changes_features(pair: Pair) -> bool:
    features = features_of(pair)
    columns = (np.asarray(getattr(features, each.name)) for each in fields(PlanFeatures))
    return any(before != after for before, after in columns)


def fault_of(knob: Knob, pairs: Sequence[Pair]) -> str | None:
    """Returns what is wrong with the declaration of a knob; None if nothing is."""
    changes = any(map(changes_features, pairs))
    if knob.forecast and not changes:
        return (
            f"{knob.name} changes no forecast: encode its effect in"
            " search_spaces/costs/plan_encoding.py, or set `forecast=False` in"
            " search_spaces/knobs/ if forecasts leave it to trials"
        )
    if changes and not knob.forecast:
        return f"{knob.name} changes forecasts: remove `forecast=False` from its entry in KNOBS"
    return None


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.name)
def test_a_knob_changes_forecasts_or_says_that_it_does_not(knob: Knob) -> None:
    assert (fault := fault_of(knob, pairs_of(knob.name))) is None, fault


def test_a_new_knob_without_a_forecast_is_found() -> None:
    knobs = plan_of().as_dict()
    pair = Pair(
        base="ddp",
        knob="static_graph",
        before=Planted(**knobs),
        after=Planted(**knobs, static_graph=True),
    )

    knob = Knob(name="static_graph")
    found = fault_of(knob, (pair,))

    assert found is not None
    assert found.startswith("static_graph changes no forecast: encode its effect in")
    assert fault_of(replace(knob, forecast=False), (pair,)) is None
