"""Micro-batches of a user's function are weighted by their targets, over all ranks."""

from __future__ import annotations

from typing import Any

import pytest

from search_spaces.trial import Measured, TrialRequest
from tests.workers.launch import Group
from tests.workers.parity.architectures import function_spec
from tests.workers.parity.plain_loop import reference_losses
from tests.workers.values import a_plan

TOLERANCE = 2e-5


@pytest.mark.parametrize(
    ("knobs", "says_targets"),
    [
        ({"micro_batch": 2, "zero_stage": 3}, True),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in (
                ({"micro_batch": 4}, False),
                ({"micro_batch": 1}, True),
                ({"micro_batch": 2, "engine": "deepspeed", "zero_stage": 2}, False),
            )
        ),
    ],
    ids=str,
)
def test_every_plan_trains_the_mean_over_all_labels(
    pair: Group, knobs: dict[str, Any], says_targets: bool
) -> None:
    spec = function_spec("make_answering", says_targets=says_targets)
    outcome = pair.run(TrialRequest(number=0, plan=a_plan(**knobs), spec=spec))

    assert isinstance(outcome, Measured), outcome
    assert outcome.losses == pytest.approx(reference_losses(spec), rel=TOLERANCE)
