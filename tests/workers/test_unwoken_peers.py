"""A rank that fails alone where no peer wakes by itself, as under NCCL."""

from __future__ import annotations

import pytest

from search_spaces.trial import Crashed, Diverged, OutOfMemory
from tests.rigs import stubborn
from tests.workers.launch import Group, Groups
from tests.workers.odd_models import SAID
from tests.workers.values import a_request, a_spec, odd_model

pytestmark = pytest.mark.thorough


@pytest.fixture
def unwoken(groups: Groups) -> Group:
    return groups.of(2, stubborn.BACKEND)


@pytest.mark.parametrize("zero_stage", [0, 3])
def test_the_alarm_wakes_them_and_the_same_workers_go_on(unwoken: Group, zero_stage: int) -> None:
    """Nothing else wakes them: each would wait for its time-out, and end its process."""
    out_of_memory = a_spec(model=odd_model("allocates", where="backward", rank=1, call=3))
    raises = a_spec(model=odd_model("raises", where="forward", rank=0, call=2))
    knobs = {"zero_stage": zero_stage, "micro_batch": 4}

    outcome = unwoken.run(a_request(out_of_memory, **knobs))
    assert isinstance(outcome, OutOfMemory)
    assert (outcome.rank, outcome.phase) == (1, "backward")
    unwoken.assert_trains(zero_stage=zero_stage)

    outcome = unwoken.run(a_request(raises, **knobs))
    assert isinstance(outcome, Crashed)
    assert (outcome.cause, outcome.rank) == ("exception", 0)
    assert SAID in outcome.detail
    unwoken.assert_trains(zero_stage=zero_stage)


def test_a_loss_that_is_no_number_is_no_reason_for_an_alarm(unwoken: Group) -> None:
    outcome = unwoken.run(a_request(a_spec(model=odd_model("nan", rank=1, call=3)), micro_batch=4))

    assert isinstance(outcome, Diverged)
    unwoken.assert_trains()
