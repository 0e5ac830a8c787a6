"""A device in error refuses everything: the trial still ends in an outcome, which is announced."""

import time
from dataclasses import replace
from typing import Any

import pytest

from search_spaces.trial import Crashed, Outcome, TrialRequest
from tests.workers.launch import Group
from tests.workers.memory.model_device import ModelDevice
from tests.workers.odd_models import SAID
from tests.workers.values import a_plan, a_spec, odd_model
from workers.entry import run_trial
from workers.memory.meter import Meter
from workers.worker import Worker

LIMIT_BYTES = 2**30
# calls to the device before it breaks, by what is then asked of it in a trial
BEFORE = {"baseline": 0, "limit": 5, "event of data": 6, "event of forward": 8, "measured step": 40}


class BrokenAfterwards(ModelDevice):
    """A device that breaks when the limit of a trial is lifted: at its end, or with its error."""

    def limit(self, claimed_bytes: int | None) -> None:
        if claimed_bytes is None:
            self.breaks_after = 0
        super().limit(claimed_bytes)


def _run_on_a_broken_device(
    worker: Worker, request: TrialRequest, calls: int | None
) -> tuple[Outcome, Any]:
    told: list[Outcome] = []
    kind = BrokenAfterwards if calls is None else ModelDevice
    device = kind(total=LIMIT_BYTES, outside=0)
    device.clock = time.perf_counter
    meter = Meter(device, None)
    device.breaks_after = calls
    broken = replace(worker, runtime=device, meter=meter, announce=told.append)
    return run_trial(request, broken), told


@pytest.mark.parametrize(
    ("model", "calls", "cause", "words"),
    [
        *(({}, calls, "device_error", "device-side assert") for calls in BEFORE.values()),
        ({}, None, "device_error", "device-side assert"),
        ({"model": odd_model("raises")}, None, "exception", SAID),  # the first error
    ],
    ids=[*BEFORE, "after the steps", "after another error"],
)
def test_it_is_told_by_its_first_cause(
    model: dict[str, Any], calls: int | None, cause: str, words: str, alone: Group
) -> None:
    spec = a_spec(cluster={"workers": 1}, **model)
    request = TrialRequest(number=0, plan=a_plan(data=1), spec=spec)

    ((outcome, told),) = alone.call(_run_on_a_broken_device, request, calls)

    assert isinstance(outcome, Crashed), outcome
    assert outcome.cause == cause
    assert words in outcome.detail
    # before communicators are aborted, which may hang, and with its costs
    announcements = 1 if outcome.phase == "end" else 2
    assert [replace(each, costs=outcome.costs) for each in told] == [outcome] * announcements
    assert told[-1] == outcome
    assert outcome.costs is not None
    assert outcome.costs.residual_bytes == LIMIT_BYTES  # so the worker is replaced
