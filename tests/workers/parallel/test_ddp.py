"""DDP: gradient buckets and gradient compression."""

import gc
import weakref
from typing import Any

import pytest

from search_spaces.trial import TrialRequest
from tests.workers.launch import Group
from tests.workers.one_step import built, sgd, whole_weights
from tests.workers.values import a_request
from workers.worker import Worker

FP16_TOLERANCE = 1e-3  # relative: fp16 has a mantissa of 11 bits


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


def _gradients(worker: Worker, request: TrialRequest) -> list[Any]:
    ours = built(worker, request, sgd(1.0))
    before = whole_weights(ours.module)
    ours.step()
    after = whole_weights(ours.module)
    ours.training.close()
    return [(before[name] - weight).numpy() for name, weight in after.items()]


def test_gradients_sent_in_half_are_rounded_and_no_more(pair: Group) -> None:
    (exact, _), (rounded, _) = (
        pair.call(_gradients, a_request(compression=compression))
        for compression in ("none", "fp16")  # torch has no bf16 hook for gloo
    )

    apart = [abs(a - b).max() / abs(b).max() for a, b in zip(rounded, exact, strict=True)]
    assert FP16_TOLERANCE / 100 < max(apart) < 3 * FP16_TOLERANCE


def _left(worker: Worker, request: TrialRequest) -> bool:
    """Returns True if a model is alive after some steps, once nothing uses it."""
    ours = built(worker, request)
    for step in range(4):
        ours.step(step)
    module = weakref.ref(ours.module)
    ours.training.close()
    del ours
    gc.collect()
    return module() is not None


def test_compression_keeps_nothing(pair: Group) -> None:
    assert pair.call(_left, a_request(compression="fp16")) == [False, False]
