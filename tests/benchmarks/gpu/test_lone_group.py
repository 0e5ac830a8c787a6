"""A worker without Ray: kept from trial to trial, and replaced when it dies or hangs."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.gpu.cases import LLAMA_1B
from benchmarks.gpu.choosing import space_of
from benchmarks.gpu.command import Asked
from benchmarks.gpu.environment import variables
from benchmarks.gpu.lone_group import LoneGroup
from orchestrator.core.instructions import Run
from search_spaces.trial import Crashed, Measured, TimedOut, TrialRequest

QUICK: dict[str, Any] = {"min_steps": 6, "max_steps": 6, "max_seconds": 0.2, "interval": 0.1}


def test_variables_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLIMSOLL_TEST_A", "before")
    with variables({"PLIMSOLL_TEST_A": "within", "PLIMSOLL_TEST_B": "new"}):
        assert os.environ["PLIMSOLL_TEST_A"] == "within"
        assert os.environ["PLIMSOLL_TEST_B"] == "new"
    assert os.environ["PLIMSOLL_TEST_A"] == "before"
    assert "PLIMSOLL_TEST_B" not in os.environ


@pytest.mark.thorough
@pytest.mark.slow
def test_trials_follow_each_other_on_one_process(asked: Asked) -> None:
    spec = LLAMA_1B.spec(tiny=True, objective=QUICK)
    group: LoneGroup = asked.group
    plan = space_of(spec, group.here(spec)).baseline
    before = group.started

    first, second = (group.measure(spec, plan, number=number) for number in (3, 4))

    assert group.started == before
    assert (first.number, second.number) == (3, 4)
    assert isinstance(first.outcome, Measured)
    assert isinstance(second.outcome, Measured)
    assert first.outcome.losses[:2] == second.outcome.losses[:2]  # nothing is left behind
    assert not second.workers_ended
    assert second.faults == ()
    assert second.fingerprint is not None
    assert second.fingerprint.device == "cpu"


@pytest.mark.thorough
def test_a_worker_that_dies_or_hangs_is_replaced(asked: Asked) -> None:
    spec = LLAMA_1B.spec(tiny=True, objective=QUICK)
    group = LoneGroup()
    try:
        plan = space_of(spec, group.here(spec)).baseline
        assert group.pid is not None
        os.kill(group.pid, signal.SIGSTOP)
        request = TrialRequest(number=0, plan=plan, spec=spec)
        run = Run(group="alone", request=request, device="cpu", deadline_seconds=1.0, folder=".")
        late = group.run(run)
        assert isinstance(late.outcome, TimedOut)
        assert late.workers_ended
        assert group.pid is None

        group.here(spec)
        assert group.pid is not None
        os.kill(group.pid, signal.SIGSTOP)
        os.kill(group.pid, signal.SIGKILL)
        dead = group.run(replace(run, deadline_seconds=60.0))
        assert isinstance(dead.outcome, Crashed | Measured)  # it may be seen before the trial
        assert isinstance(group.measure(spec, plan).outcome, Measured)
        assert group.started >= 3
    finally:
        group.stop()
