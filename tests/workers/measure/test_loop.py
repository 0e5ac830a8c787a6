"""The measuring loop on real training steps: when it stops, what it times together, what adds up.

How long a step takes is set by an input that is slow to come, so that no test depends on the
speed of the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from search_spaces.outcome import Diverged, Measured
from search_spaces.render import render_torch
from search_spaces.spec.schema import ObjectiveSpec
from tests.workers.launch import Group
from tests.workers.values import GLOBAL_BATCH, a_plan, a_request, a_spec, odd_model
from workers.data import MicroBatch, StepBatches
from workers.measure.loop import MIN_WINDOW_SECONDS, Series, measure_steps
from workers.measure.stopwatch import HostStopwatch
from workers.ranks import Ranks
from workers.step import Training
from workers.worker import Worker

NEVER_TIGHT = 1e-9
ALWAYS_TIGHT = 0.99
CPU = torch.device("cpu")


class _Mean(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.layer(x).square().mean()
        return loss


def training() -> Training:
    module = _Mean()
    return Training(
        module=module,
        optimizer=torch.optim.AdamW(module.parameters()),
        settings=render_torch(a_plan(data=1), 0),
        device=CPU,
        data=1,
    )


def feed(seconds: float = 0.0) -> Callable[[int], StepBatches]:
    """Input that takes so long to come."""

    def step(_: int) -> StepBatches:
        time.sleep(seconds)
        batch = MicroBatch(inputs={"x": torch.ones(2, 4)}, samples=2, tokens=8, targets=2)
        return StepBatches(batches=(batch,), targets=2, tokens=8)

    return step


def measure(given: Callable[[int], StepBatches], **objective: float) -> Series:
    series = measure_steps(
        training(), given, ObjectiveSpec.model_validate(objective), None, HostStopwatch()
    )
    assert isinstance(series, Series)
    assert len(series.losses) == sum(window.steps for window in series.windows)
    return series


def test_stops_as_soon_as_it_is_tight() -> None:
    series = measure(feed(0.1), interval=ALWAYS_TIGHT, min_steps=6, max_steps=500)

    assert len(series.steady) == 6
    assert series.step_seconds.relative_half_width <= ALWAYS_TIGHT


def test_a_wide_interval_takes_all_steps_there_are() -> None:
    series = measure(feed(0.01), interval=NEVER_TIGHT, max_steps=33, max_seconds=60)

    assert len(series.losses) == 33


def test_stops_when_its_seconds_are_up() -> None:
    series = measure(feed(0.05), interval=NEVER_TIGHT, max_steps=10_000, max_seconds=1.0)

    *before, last = (window.seconds * window.steps for window in series.windows)
    assert sum(before) < 1.0 <= sum(before) + last


def test_a_plan_slower_than_its_seconds_still_gets_a_second_look() -> None:
    series = measure(feed(0.15), interval=NEVER_TIGHT, max_seconds=0.1)

    assert [window.steps for window in series.windows] == [1, 1]


def test_short_steps_are_timed_several_at_once() -> None:
    series = measure(feed(0.002), interval=NEVER_TIGHT, max_steps=400, max_seconds=2.0)

    lasted = sorted(window.seconds * window.steps for window in series.windows[2:-1])
    assert lasted[len(lasted) // 2] > 0.5 * MIN_WINDOW_SECONDS
    assert series.windows[1].steps > 1


def test_long_steps_are_timed_one_by_one() -> None:
    series = measure(feed(0.11), interval=ALWAYS_TIGHT)

    assert {window.steps for window in series.windows} == {1}


def test_waiting_for_input_counts_as_data_and_phases_add_up_to_the_step() -> None:
    series = measure(feed(0.05), interval=NEVER_TIGHT, max_steps=12)

    phases, seconds = series.phases, series.step_seconds
    added = phases.data + phases.forward + phases.backward + phases.optimizer
    assert 0.05 <= phases.data <= seconds.high
    assert added == pytest.approx(seconds.value, rel=0.2)
    assert min(phases.forward, phases.backward, phases.optimizer) > 0


def test_steps_come_in_order_from_the_first() -> None:
    asked: list[int] = []
    slow = feed(0.01)

    def note(step: int) -> StepBatches:
        asked.append(step)
        return slow(step)

    measure(note, interval=NEVER_TIGHT, max_steps=20)

    assert asked == list(range(20))


def test_a_loss_that_is_no_number_ends_it_at_its_step() -> None:
    def poison(step: int) -> StepBatches:
        given = feed()(step)
        bad = {"x": torch.full((2, 4), float("nan") if step == 5 else 1.0)}
        batch = MicroBatch(inputs=bad, samples=2, tokens=8, targets=2)
        return StepBatches(batches=(batch,), targets=given.targets, tokens=given.tokens)

    ending = measure_steps(training(), poison, ObjectiveSpec(), None, HostStopwatch())

    assert isinstance(ending, Diverged)
    assert (ending.step, ending.loss) == (5, "nan")


def _steps_of(worker: Worker, slow_rank: int) -> tuple[int, tuple[int, ...], tuple[float, ...]]:
    """Measures with one rank whose input is slow; steps, windows and losses as this rank saw it."""
    ranks: Ranks = worker.ranks
    slow = 0.02 if ranks.rank == slow_rank else 0.0
    objective = ObjectiveSpec(interval=NEVER_TIGHT, max_steps=1000, max_seconds=0.5)
    group = worker.group.lend(30.0)
    series = measure_steps(training(), feed(slow), objective, group, HostStopwatch())
    assert isinstance(series, Series)
    windows = tuple(window.steps for window in series.windows)
    return len(series.losses), windows, series.losses


@pytest.mark.parametrize("slow_rank", [0, 1])
def test_all_ranks_take_the_same_steps_however_fast_each_is(pair: Group, slow_rank: int) -> None:
    first, second = pair.call(_steps_of, slow_rank)

    assert first == second
    assert first[0] > 1


def test_what_is_reported_of_a_trial_is_consistent(pair: Group) -> None:
    spec = a_spec(
        data={"lengths": {48: 1}}, objective={"interval": 0.9, "max_steps": 60, "max_seconds": 2}
    )
    outcome = pair.run(a_request(spec))

    assert isinstance(outcome, Measured)
    step = outcome.step_seconds
    assert outcome.warmup_steps + outcome.measured_steps == 1 + len(outcome.losses)
    assert outcome.warmup_steps >= 1  # the step on the longest samples
    assert outcome.samples_per_second.value * step.value == pytest.approx(GLOBAL_BATCH)
    assert outcome.samples_per_second.low * step.high == pytest.approx(GLOBAL_BATCH)
    assert outcome.tokens_per_second * step.value == pytest.approx(GLOBAL_BATCH * 48)
    phases = outcome.phases
    added = phases.data + phases.forward + phases.backward + phases.optimizer
    assert 0.5 * step.value < added < 1.1 * step.value
    assert outcome.costs.steps_seconds < outcome.costs.total_seconds
    assert outcome.mfu is not None
    assert 0 < outcome.mfu < 1


def test_padding_takes_time_and_counts_for_nothing(alone: Group) -> None:
    """One sample in eight is long: padded, all are computed as long as it."""
    spec = a_spec(data={"lengths": {8: 7, 512: 1}}, train={"sequence_length": 512})
    padded, packed = (
        alone.run(a_request(spec, data=1, micro_batch=8, batching=batching))
        for batching in ("padded", "packed")
    )

    assert isinstance(padded, Measured)
    assert isinstance(packed, Measured)
    assert padded.step_seconds.value > 1.5 * packed.step_seconds.value
    per_step = [run.tokens_per_second * run.step_seconds.value for run in (padded, packed)]
    assert per_step[0] == pytest.approx(per_step[1])
    assert packed.losses == pytest.approx(padded.losses, rel=1e-4)


def test_a_model_that_looks_at_values_is_measured_without_flops(alone: Group) -> None:
    outcome = alone.run(a_request(a_spec(model=odd_model("peeks")), data=1, micro_batch=8))

    assert isinstance(outcome, Measured)
    assert (outcome.flops_per_step, outcome.mfu) == (None, None)
