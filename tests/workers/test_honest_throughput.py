"""What a trial reports is what a plain training loop gets on the same plan, in the same process.

The two take turns, so that both see the same noise of the machine; their medians are compared.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import torch

from search_spaces.outcome import Measured
from search_spaces.request import TrialRequest
from tests.workers.launch import Group
from tests.workers.values import GLOBAL_BATCH, a_request, a_spec
from workers.data import batch_source
from workers.entry import run_trial
from workers.models import build
from workers.worker import Worker

TURNS, SECONDS = 9, 0.4
LEAST, MOST = 0.7, 1.4  # single turns scatter by a quarter where other jobs share the cores
SPEC = a_spec(
    data={"lengths": {64: 1}},
    objective={"interval": 0.02, "max_seconds": SECONDS, "max_steps": 1000},
)


def _plain_loop(request: TrialRequest, seconds: float) -> float:
    """Samples per second of a loop as anybody writes it; the clock starts at the fourth step."""
    model = build(SPEC.model, SPEC.train, attention=request.plan.attention)
    source = batch_source(model, SPEC)
    module = model.module.train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=SPEC.train.learning_rate, fused=True)
    started, done, step = 0.0, 0, 0
    while not started or time.perf_counter() - started < seconds:
        if step == 3:
            started, done = time.perf_counter(), 0
        batches = source.step(request.plan, 0, step).batches
        for batch in batches:
            loss = module(**batch.inputs).loss / len(batches)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step, done = step + 1, done + GLOBAL_BATCH
    return done / (time.perf_counter() - started)


def _take_turns(worker: Worker, request: TrialRequest) -> Sequence[tuple[float, float]]:
    """Samples per second as reported and as a plain loop gets them, some times over."""
    pairs = []
    for _ in range(TURNS):
        outcome = run_trial(request, worker)
        assert isinstance(outcome, Measured)
        pairs.append((outcome.samples_per_second.value, _plain_loop(request, SECONDS)))
    return pairs


def test_a_trial_reports_what_a_plain_loop_gets(alone: Group) -> None:
    (pairs,) = alone.call(_take_turns, a_request(SPEC, data=1, micro_batch=4))

    ratio = statistics.median(reported / plain for reported, plain in pairs)
    print("reported over plain:", [round(reported / plain, 3) for reported, plain in pairs])
    assert LEAST < ratio < MOST
