"""Tests that a trial reports the throughput of a plain training loop in the same process.

Both are timed in CPU seconds of their process, which other jobs do not add to. They alternate, and
the best run of each is compared: cache pressure by other jobs only makes runs slower.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
import torch

from search_spaces.trial import Measured, TrialRequest
from tests.workers.launch import Group
from tests.workers.values import GLOBAL_BATCH, a_request, a_spec
from workers.data.batches import batch_source
from workers.engines.stopwatch import Stopwatch
from workers.memory.device_runtime import CpuRuntime
from workers.models.load import build_whole
from workers.trial import train_and_measure
from workers.worker import Worker

# what `make bench` and `make gpu` measure; here that no factor of two creeps in
pytestmark = pytest.mark.thorough
TURNS, SECONDS = 9, 0.4
LEAST, MOST = 0.6, 1.6  # still no factor of two
SPEC = a_spec(
    data={"lengths": {64: 1}},
    objective={"interval": 0.02, "max_seconds": SECONDS, "max_steps": 1000},
)


def _plain_loop(request: TrialRequest, seconds: float) -> float:
    """Samples per CPU second of a plain loop, counted from the fourth step."""
    model = build_whole(SPEC.model, SPEC.train, attention=request.plan.attention)
    source = batch_source(model, SPEC)
    module = model.module.train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=SPEC.train.learning_rate, fused=True)
    started, done, step = 0.0, 0, 0
    while not started or time.process_time() - started < seconds:
        if step == 3:
            started, done = time.process_time(), 0
        batches = source.step(request.plan, 0, step).batches
        for batch in batches:
            loss = module(**batch.inputs).loss / len(batches)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step, done = step + 1, done + GLOBAL_BATCH
    return done / (time.process_time() - started)


def _take_turns(worker: Worker, request: TrialRequest) -> Sequence[tuple[float, float]]:
    """Samples per CPU second as reported and in a plain loop, several times each."""
    pairs = []
    for _ in range(TURNS):
        outcome = train_and_measure(
            request, worker, None, Stopwatch(CpuRuntime(clock=time.process_time))
        )
        worker.meter.close()
        assert isinstance(outcome, Measured)
        pairs.append((outcome.samples_per_second.value, _plain_loop(request, SECONDS)))
    return pairs


def test_a_trial_reports_what_a_plain_loop_gets(alone: Group) -> None:
    (pairs,) = alone.call(_take_turns, a_request(SPEC, data=1, micro_batch=4))

    reported, plain = (max(turns) for turns in zip(*pairs, strict=True))
    print("reported over plain:", [round(left / right, 3) for left, right in pairs])
    assert LEAST < reported / plain < MOST
