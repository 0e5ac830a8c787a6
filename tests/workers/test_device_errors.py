"""A device in error refuses everything: the trial still ends in an outcome, which is announced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from search_spaces.trial import Crashed, Outcome, TrialRequest
from tests.workers.launch import Group
from tests.workers.odd_models import SAID
from tests.workers.values import a_plan, a_spec, odd_model
from workers.entry import run_trial
from workers.memory.meter import AbstractMeter, MemoryPeak
from workers.worker import Worker


class BrokenMeter(AbstractMeter):
    """A meter whose driver fails after the trial has begun, as after an assertion on a GPU."""

    limit_bytes = 2**30

    def open(self) -> None:
        """Nothing is broken yet."""

    def _enforce(self) -> None:
        """Nothing is broken yet."""

    def _lift(self) -> None:
        """Suppresses the error, as the real one does."""

    def bytes_in_use(self) -> int:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    def peak(self) -> MemoryPeak:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    def close(self) -> int:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")


def _run_on_a_broken_device(worker: Worker, request: TrialRequest) -> tuple[Outcome, Any]:
    told: list[Outcome] = []
    broken = replace(worker, meter=BrokenMeter(), announce=told.append)
    return run_trial(request, broken), told


@pytest.mark.parametrize(
    ("model", "cause", "words"),
    [
        ({}, "device_error", "device-side assert"),
        ({"model": odd_model("raises")}, "exception", SAID),  # the first error, not the device's
    ],
    ids=["the device's own", "one before it"],
)
def test_it_is_told_by_its_first_cause(
    model: dict[str, Any], cause: str, words: str, alone: Group
) -> None:
    spec = a_spec(cluster={"workers": 1}, **model)
    request = TrialRequest(number=0, plan=a_plan(data=1), spec=spec)

    ((outcome, told),) = alone.call(_run_on_a_broken_device, request)

    assert isinstance(outcome, Crashed), outcome
    assert outcome.cause == cause
    assert words in outcome.detail
    first, last = told  # before communicators are aborted, which may hang, and with its costs
    assert replace(first, costs=outcome.costs) == last == outcome
    assert outcome.costs is not None
    assert outcome.costs.residual_bytes == BrokenMeter.limit_bytes  # so the worker is replaced
