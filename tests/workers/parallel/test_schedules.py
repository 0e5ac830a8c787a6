"""Declared shapes of pipeline schedules are those of the orders that torch generates.

An order is walked through on ranks that take one unit of time for a stage's forward pass, its
gradients of hidden states and its gradients of weights each.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining.schedules import _Action, _ComputationType

from search_spaces.plan import Schedule
from search_spaces.settings.schedules import SCHEDULES, ScheduleShape

FORWARD = _ComputationType.FORWARD
INPUTS = _ComputationType.BACKWARD_INPUT
WEIGHTS = _ComputationType.BACKWARD_WEIGHT
CLASSES: dict[Schedule, Any] = {  # of those that have two stages per rank
    "interleaved": schedules.ScheduleInterleaved1F1B,
    "interleaved_zero_bubble": schedules.ScheduleInterleavedZeroBubble,
    "zbv": schedules.ScheduleZBVZeroBubble,
    "dualpipev": schedules.ScheduleDualPipeV,
}
UNITS = 3  # of time that a stage takes for a micro-batch


@dataclass
class Stage:
    """A stage, as far as a schedule looks at it before it runs."""

    stage_index: int
    num_stages: int
    group_size: int
    group_rank: int = 0
    submod: None = None
    stage_index_to_group_rank: Any = None


def order_of(name: Schedule, ranks: int, micro_batches: int) -> dict[int, list[_Action]]:
    """Actions of each rank, as torch orders them."""
    last = 2 * ranks - 1
    stages = [Stage(index, last + 1, ranks) for index in SCHEDULES[name].stages_of(0, ranks)]
    order = CLASSES[name](stages, micro_batches).pipeline_order
    return {
        rank: [part for action in actions if action for part in action.sub_actions or (action,)]
        for rank, actions in order.items()
    }


def most_in_flight(actions: list[_Action]) -> float:
    """Micro-batches whose activations a rank of two stages holds at most."""
    held = most = 0
    for action in actions:
        if action.computation_type == FORWARD:
            held += 1
        elif action.computation_type != INPUTS:  # weights, or both
            held -= 1
        most = max(most, held)
    return most / 2


def waiting(order: dict[int, list[_Action]]) -> float:
    """Units of time that the slowest rank waits, from the first to the last action of a step."""
    last = max(action.stage_index for actions in order.values() for action in actions)
    ended: dict[tuple[str, int, int | None], int] = {}
    clocks = dict.fromkeys(order, 0)

    def steps(rank: int) -> Iterator[None]:
        for action in order[rank]:
            stage, batch = action.stage_index, action.microbatch_index
            if action.computation_type == FORWARD:
                needed, made, units = ("forward", stage - 1, batch), "forward", 1
            elif action.computation_type == WEIGHTS:  # of the first stage: all of its backward
                needed, made, units = ("inputs", stage, batch), "weights", 1 + (stage == 0)
            else:
                needed, made = ("inputs", stage + 1, batch), "inputs"
                units = 2 if action.computation_type != INPUTS else int(stage > 0)
            if needed[1] > last:
                needed = ("forward", last, batch)
            while needed[1] >= 0 and needed not in ended:
                yield
            clocks[rank] = max(clocks[rank], ended.get(needed, 0)) + units
            ended[made, stage, batch] = clocks[rank]

    walking = [steps(rank) for rank in order]
    while walking:
        walking = [each for each in walking if next(each, walking) is not walking]
    return max(clocks.values()) - sum(
        1 if action.computation_type in (FORWARD, INPUTS, WEIGHTS) else 2 for action in order[0]
    )


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("name", CLASSES)
def test_stages_are_where_torch_runs_them(name: Schedule, ranks: int) -> None:
    order = order_of(name, ranks, 2 * ranks)

    for rank, actions in order.items():
        found = sorted({action.stage_index for action in actions})
        assert tuple(found) == SCHEDULES[name].stages_of(rank, ranks)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("name", CLASSES)
def test_ranks_wait_as_long_as_it_says(name: Schedule, ranks: int) -> None:
    """A rank waits for `ranks` - 1 micro-batches under 1F1B (Narayanan et al. 2021)."""
    of_1f1b = (ranks - 1) * UNITS * 2  # stages of a rank
    for micro_batches in (2 * ranks, 4 * ranks):
        found = waiting(order_of(name, ranks, micro_batches))

        assert found == pytest.approx(SCHEDULES[name].bubble * of_1f1b)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(
    "name", [name for name, shape in SCHEDULES.items() if shape.splits_backward]
)
def test_every_rank_holds_equally_many_micro_batches(name: Schedule, ranks: int) -> None:
    for micro_batches in (2 * ranks, 4 * ranks):
        held = map(most_in_flight, order_of(name, ranks, micro_batches).values())

        assert set(held) == {ranks + SCHEDULES[name].extra_in_flight}


@pytest.mark.parametrize("name", CLASSES)
def test_backward_is_split_where_it_says_so(name: Schedule) -> None:
    kinds = {action.computation_type for action in order_of(name, 4, 8)[1]}

    assert (WEIGHTS in kinds) is SCHEDULES[name].splits_backward


@pytest.mark.parametrize("ranks", [2, 4])
def test_dualpipev_needs_a_micro_batch_per_stage(ranks: int) -> None:
    needed = SCHEDULES["dualpipev"].fill * ranks

    order_of("dualpipev", ranks, needed)
    with pytest.raises(ValueError, match="at least as many microbatches as stages"):
        order_of("dualpipev", ranks, needed - 1)


def test_stages_of_a_rank_by_hand() -> None:
    loop, fold = (
        ScheduleShape(stages_per_rank=2),
        ScheduleShape(stages_per_rank=2, is_v_shaped=True),
    )

    assert [loop.stages_of(rank, 3) for rank in range(3)] == [(0, 3), (1, 4), (2, 5)]
    assert [fold.stages_of(rank, 3) for rank in range(3)] == [(0, 5), (1, 4), (2, 3)]
    assert [ScheduleShape().stages_of(rank, 3) for rank in range(3)] == [(0,), (1,), (2,)]
