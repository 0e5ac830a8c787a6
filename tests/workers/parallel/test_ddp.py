"""DDP: gradient buckets."""

from typing import Any

import pytest

from search_spaces.trial import TrialRequest
from tests.workers.launch import Group
from tests.workers.one_step import built
from tests.workers.values import a_request
from workers.worker import Worker


def _in_buckets(worker: Worker, request: TrialRequest) -> tuple[int, int]:
    """Counts gradients that share a storage with another one before the optimizer, and all."""
    ours = built(worker, request)
    places: list[int] = []

    def look(*_: Any) -> None:
        places.extend(
            weight.grad.untyped_storage().data_ptr()
            for weight in ours.module.parameters()
            if weight.grad is not None
        )

    ours.training.update.optimizer.register_step_pre_hook(look)
    for step in range(2):
        places.clear()
        ours.step(step)
    ours.training.close()
    return len(set(places)), len(places)


@pytest.mark.parametrize("view", [False, True])
def test_gradients_are_views_of_the_buckets_if_the_plan_says_so(pair: Group, view: bool) -> None:
    request = a_request(gradient_as_bucket_view=view)

    for storages, gradients in pair.call(_in_buckets, request):
        assert storages == (1 if view else gradients)  # the tiny model is one bucket
