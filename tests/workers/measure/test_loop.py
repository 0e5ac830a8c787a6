"""The measuring loop on real training steps: when it stops, its windows, and consistent sums.

The clock is controlled by the test: a step takes the time that its input states, on any machine.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import _dynamo

from search_spaces.hardware.noise import noise_prior
from search_spaces.settings.render import render_torch
from search_spaces.specification.sections import ObjectiveSpec
from search_spaces.trial import Diverged, Estimate, Measured, Phases
from tests.search_spaces.values import a_model
from tests.workers.launch import Group
from tests.workers.memory.model_device import ModelDevice, cuda_on_model
from tests.workers.values import CALL_SECONDS, GLOBAL_BATCH, a_plan, a_request, a_spec
from workers.data.batches import StepBatches
from workers.data.collate import MicroBatch
from workers.engines.optimizer_step import make_norm
from workers.engines.stopwatch import Stopwatch
from workers.engines.torch import TorchTraining
from workers.measure.loop import MIN_WINDOW_SECONDS, Series, measure_steps
from workers.memory.device_runtime import CpuRuntime
from workers.plain_torch.update import Update
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


def training() -> TorchTraining:
    module = _Mean()
    return TorchTraining(
        module=module,
        update=Update(optimizer=torch.optim.AdamW(module.parameters())),
        norm=make_norm(None, torch.device("cpu")),
        settings=render_torch(a_plan(data=1), a_model()),
        device=CPU,
        data=1,
        counts=True,
    )


class Clock:
    """A clock that advances only on request."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


Takes = Callable[[int], float]  # seconds that the input of a step takes to come


def always(seconds: float) -> Takes:
    return lambda _: seconds


def growing(seconds: float) -> Takes:
    """Each step takes slightly longer than the one before, so that intervals have a width."""
    return lambda step: seconds * (1 + 1e-6 * step)


def feed(clock: Clock, takes: Takes) -> Callable[[int], StepBatches]:
    def step(number: int) -> StepBatches:
        clock.advance(takes(number))
        batch = MicroBatch(inputs={"x": torch.ones(2, 4)}, samples=2, tokens=8, targets=2)
        return StepBatches(batches=(batch,), targets=2, tokens=8)

    return step


def measure(
    takes: Takes,
    group: dist.ProcessGroup | None = None,
    incumbent: Estimate | None = None,
    **objective: float,
) -> Series:
    clock = Clock()
    series = measure_steps(
        training(),
        feed(clock, takes),
        ObjectiveSpec.model_validate(objective),
        group,
        Stopwatch(CpuRuntime(clock=clock)),
        incumbent,
    )
    assert isinstance(series, Series)
    assert len(series.losses) == sum(window.steps for window in series.windows)
    assert len(series.seconds_by_step) == len(series.losses)
    spent = sum(window.seconds * window.steps for window in series.windows)
    assert sum(series.seconds_by_step) == pytest.approx(spent)
    return series


# six windows may have missed a stall in half of the steps, which counts as 5 %
STEADY = Estimate(value=0.125, low=0.125, high=0.13125)


def test_stops_as_soon_as_it_is_tight() -> None:
    series = measure(always(0.125), interval=ALWAYS_TIGHT, min_steps=6, max_steps=500)

    assert len(series.windows) == len(series.steady) == 6
    assert series.step_seconds == STEADY


def test_slow_first_steps_do_not_count_nor_do_their_retries() -> None:
    """The allocator's cache grows in them, and may be given back then."""
    clock, retries = Clock(), 0
    seconds = [1.0, 0.5] + [0.125] * 6
    retried = [2, 1, 0, 0, 4, 0, 0, 1]
    given = feed(clock, seconds.__getitem__)

    def step(number: int) -> StepBatches:
        nonlocal retries
        retries += retried[number]
        return given(number)

    objective = ObjectiveSpec.model_validate({"interval": ALWAYS_TIGHT, "min_steps": 6})
    series = measure_steps(
        training(),
        step,
        objective,
        None,
        Stopwatch(CpuRuntime(clock=clock)),
        allocator_retries=lambda: retries,
    )

    assert isinstance(series, Series)
    assert (series.warmup, len(series.steady)) == (2, 6)
    assert series.step_seconds == STEADY
    assert [window.allocator_retries for window in series.windows] == retried
    assert series.allocator_retries == 5


def test_stops_when_its_seconds_are_up() -> None:
    series = measure(growing(0.05), interval=NEVER_TIGHT, max_steps=10_000, max_seconds=1.0)

    *before, last = (window.seconds * window.steps for window in series.windows)
    assert sum(before) < 1.0 <= sum(before) + last


INCUMBENT = Estimate(value=0.2, low=0.19, high=0.21)


@pytest.mark.parametrize(
    ("seconds", "steps", "beaten"),
    [
        (0.8, 3, True),  # four times as slow
        (0.25, 5, True),  # slower than its slowest
        (0.125, 6, False),  # faster: as exact as was asked for
    ],
)
def test_what_is_beaten_ends_early(seconds: float, steps: int, beaten: bool) -> None:
    series = measure(always(seconds), incumbent=INCUMBENT, interval=ALWAYS_TIGHT, min_steps=6)

    assert (len(series.windows), series.beaten) == (steps, beaten)


def test_a_near_tie_is_measured_no_longer_than_any_other_plan() -> None:
    def takes(step: int) -> float:
        return 0.2 if step % 2 else 0.22

    alone = measure(takes, interval=0.06, min_steps=6, max_steps=40)
    tie = measure(takes, incumbent=INCUMBENT, interval=0.06, min_steps=6, max_steps=40)

    assert len(tie.windows) == len(alone.windows) < 40
    assert not tie.beaten


def test_a_slow_start_that_agrees_with_itself_does_not_end_it() -> None:
    """Twelve windows are eight slow and four fast ones; the halves differ until 8 can be cut."""
    series = measure(lambda step: 0.24 if step < 8 else 0.2, interval=0.03)

    assert series.warmup == 8
    assert series.step_seconds.value == pytest.approx(0.2)


def test_a_floor_of_seconds_keeps_it_going_up_to_its_caps() -> None:
    assert _seconds_with_floor(10.0) == pytest.approx(10.0)
    assert _seconds_with_floor(10.0, max_seconds=3.0) == pytest.approx(3.0)
    assert _seconds_with_floor(10.0, max_steps=16) == pytest.approx(4.0)


def _seconds_with_floor(floor_seconds: float, **caps: float) -> float:
    clock = Clock()
    objective = ObjectiveSpec.model_validate({"interval": ALWAYS_TIGHT, **caps})
    steps, watch = feed(clock, always(0.25)), Stopwatch(CpuRuntime(clock=clock))
    series = measure_steps(training(), steps, objective, None, watch, None, floor_seconds)
    assert isinstance(series, Series)
    return sum(series.seconds_by_step)


def test_a_stall_counts_in_the_mean() -> None:
    """Each tenth step takes six times as long; the mean is half as long again."""
    series = measure(lambda step: 1.2 if step % 10 == 9 else 0.2, interval=0.02, max_steps=100)

    assert len(series.steady) == 100
    assert series.step_seconds.value == pytest.approx(0.3)
    assert series.stall_seconds == pytest.approx(10 * 1.0)


def test_steps_in_which_something_was_compiled_are_told_apart() -> None:
    """Step 3 compiles, as for a new input shape; compilation does not count as speed."""

    def takes(step: int) -> float:
        if step != 3:
            return 1.0
        _dynamo.utils.cumulative_time_spent_ns["entire_frame_compile"] += 50e9
        return 51.0

    series = measure(takes, interval=ALWAYS_TIGHT, min_steps=6, max_steps=20, max_seconds=30)
    _dynamo.reset()

    assert [window.seconds for window in series.windows] == [51.0, *6 * [1.0]]
    assert [window.compile_seconds for window in series.windows] == [50.0, *6 * [0.0]]
    assert len(series.steady) == 6  # the 30 seconds were not spent on compilation


def test_short_steps_are_timed_several_at_once() -> None:
    series = measure(growing(1 / 512), interval=NEVER_TIGHT, max_steps=400)

    assert [window.steps for window in series.windows] == [1, *[52] * 7, 35]
    for window in series.windows[1:-1]:
        assert window.seconds * window.steps >= MIN_WINDOW_SECONDS["cpu"]


def test_waiting_for_input_counts_as_data_and_phases_add_up_to_the_step() -> None:
    clock, trained = Clock(), training()
    trained.module.register_forward_hook(lambda *_: clock.advance(1 / 128))
    next(trained.module.parameters()).register_hook(lambda _: clock.advance(1 / 64))
    trained.update.optimizer.register_step_post_hook(lambda *_: clock.advance(1 / 256))

    series = measure_steps(
        trained,
        feed(clock, always(1 / 32)),
        ObjectiveSpec(),
        None,
        Stopwatch(CpuRuntime(clock=clock)),
    )

    assert isinstance(series, Series)
    assert {window.steps for window in series.windows} == {1, 2}
    assert series.phases == Phases(data=1 / 32, forward=1 / 128, backward=1 / 64, optimizer=1 / 256)
    assert series.step_seconds.value == 15 / 256


@pytest.mark.parametrize("kind", ["model", "CUDA's on the model"])
def test_steps_take_as_long_as_their_kernels_and_not_as_their_launch(kind: str) -> None:
    model, trained = ModelDevice(), training()
    trained.module.register_forward_hook(lambda *_: model.compute(1 / 128))
    next(trained.module.parameters()).register_hook(lambda _: model.compute(1 / 64))
    trained.update.optimizer.register_step_post_hook(lambda *_: model.compute(1 / 256))

    with cuda_on_model(model) as cuda:
        cuda.clock = model.clock
        watch = Stopwatch(model if kind == "model" else cuda)
        series = measure_steps(trained, feed(Clock(), always(0)), ObjectiveSpec(), None, watch)

    assert isinstance(series, Series)
    assert series.phases == Phases(data=0, forward=1 / 128, backward=1 / 64, optimizer=1 / 256)
    assert series.step_seconds.value == 7 / 256


def test_a_loss_that_is_no_number_ends_it_at_its_step() -> None:
    clock = Clock()
    usual = feed(clock, always(0.01))

    def poison(step: int) -> StepBatches:
        given = usual(step)
        bad = {"x": torch.full((2, 4), float("nan") if step == 5 else 1.0)}
        batch = MicroBatch(inputs=bad, samples=2, tokens=8, targets=2)
        return StepBatches(batches=(batch,), targets=given.targets, tokens=given.tokens)

    ending = measure_steps(
        training(), poison, ObjectiveSpec(), None, Stopwatch(CpuRuntime(clock=clock))
    )

    assert isinstance(ending, Diverged)
    assert (ending.step, ending.loss) == (5, "nan")


def _steps_of(worker: Worker, slow_rank: int) -> tuple[int, tuple[int, ...], tuple[float, ...]]:
    """Measures with slow input on one rank; returns steps, windows and losses of this rank."""
    takes = growing(1 / 64 if worker.ranks.rank == slow_rank else 1 / 512)
    mesh = worker.group.acquire(CALL_SECONDS, a_plan())
    assert mesh is not None
    series = measure(takes, mesh.group, interval=NEVER_TIGHT, max_steps=1000, max_seconds=0.5)
    windows = tuple(window.steps for window in series.windows)
    return len(series.losses), windows, series.losses


@pytest.mark.parametrize(
    ("slow_rank", "steps"), [(0, 36), pytest.param(1, 261, marks=pytest.mark.thorough)]
)
def test_all_ranks_take_the_steps_of_rank_0_however_fast_each_is(
    pair: Group, slow_rank: int, steps: int
) -> None:
    first, second = pair.call(_steps_of, slow_rank)

    assert first == second
    assert first[0] == steps


def test_what_is_reported_of_a_trial_is_consistent(pair: Group) -> None:
    spec = a_spec(
        data={"lengths": {48: 1}}, objective={"interval": 0.9, "max_steps": 60, "max_seconds": 2}
    )
    quiet = replace(noise_prior("cuda"), seconds=1e9)
    outcome = pair.run(replace(a_request(spec), noise=quiet))

    assert isinstance(outcome, Measured)
    step = outcome.step_seconds
    assert step.low * step.high == pytest.approx(step.value**2)  # nothing is added for stalls
    assert outcome.stall_seconds is not None
    assert 0 <= outcome.stall_seconds < step.value * outcome.measured_steps
    assert outcome.warmup_steps + outcome.measured_steps == 1 + len(outcome.losses)
    assert outcome.warmup_steps >= 1  # the step on the longest samples
    assert outcome.samples_per_second.value * step.value == pytest.approx(GLOBAL_BATCH)
    assert outcome.samples_per_second.low * step.high == pytest.approx(GLOBAL_BATCH)
    assert outcome.tokens_per_second * step.value == pytest.approx(GLOBAL_BATCH * 48)
    assert outcome.costs.steps_seconds < outcome.costs.total_seconds
    assert outcome.mfu is not None
    assert 0 < outcome.mfu < 1


def test_a_beaten_trial_says_so_on_all_ranks(pair: Group) -> None:
    """No plan is as fast as this incumbent; both ranks stop together."""
    incumbent = Estimate(value=1e-6, low=1e-6, high=1e-6)
    spec = a_spec(objective={"interval": 1e-6, "max_steps": 1000})
    outcome = pair.run(replace(a_request(spec), incumbent=incumbent))

    assert isinstance(outcome, Measured)
    assert outcome.beaten
    assert len(outcome.losses) < 1000


@pytest.mark.thorough
def test_padding_counts_for_nothing(alone: Group) -> None:
    """One sample in eight is long: a padded batch has 4,096 positions for 568 tokens."""
    spec = a_spec(data={"lengths": {8: 7, 512: 1}}, train={"sequence_length": 512})
    padded, packed = (
        alone.run(a_request(spec, data=1, micro_batch=8, batching=batching))
        for batching in ("padded", "packed")
    )

    assert isinstance(padded, Measured)
    assert isinstance(packed, Measured)
    # the two may measure different numbers of steps, so of different tokens
    tokens = [run.tokens_per_second * run.step_seconds.value for run in (padded, packed)]
    assert tokens == pytest.approx([568, 568], rel=0.2)
    assert padded.flops_per_step
    assert packed.flops_per_step
    assert padded.flops_per_step / tokens[0] == pytest.approx(packed.flops_per_step / tokens[1])
    steps = min(len(padded.losses), len(packed.losses))
    assert packed.losses[:steps] == pytest.approx(padded.losses[:steps], rel=1e-4)
