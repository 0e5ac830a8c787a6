"""Real out-of-memory failures: torch's allocator exceeds a budget on real ranks.

Afterwards the same processes continue as if nothing had happened.
"""

import ctypes
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import OutOfMemory, TrialRequest
from tests.workers.launch import Group
from tests.workers.odd_models import HUGE_BYTES
from tests.workers.values import LLAMA, MEMORY_GIB, a_request, a_spec, odd_model
from workers.entry import _ending_of
from workers.worker import Worker

LIMIT_BYTES = int(MEMORY_GIB * 2**30)
MIB = 2**20
GLOBAL_BATCH = 256
# 128 samples of 32 tokens at once: one tensor of logits, 16000 words, takes 262 MB
ONE_TENSOR = a_spec(
    model={**LLAMA, "config": {**LLAMA["config"], "vocab_size": 16000}},
    data={"lengths": {32: 1}},
    train={"global_batch": GLOBAL_BATCH, "sequence_length": 32},
)
# a narrow vocabulary: many tensors of some MB each fill the budget
MANY_TENSORS = a_spec(
    data={"lengths": {256: 1}}, train={"global_batch": GLOBAL_BATCH, "sequence_length": 256}
)
# What glibc may keep after an allocation failed: it tries another arena, whose free end it does
# not give back (malloc_trim(3) trims the main arena's alone; HEAP_MAX_SIZE).
ARENA_BYTES = 64 * MIB


def large_request(spec: SweepSpec = ONE_TENSOR, zero_stage: int = 0) -> TrialRequest:
    return a_request(spec, zero_stage=zero_stage, micro_batch=128, accumulation=1)


@pytest.mark.parametrize(
    ("spec", "zero_stage"),
    [
        pytest.param(ONE_TENSOR, 3, id="one tensor, zero 3"),
        *(
            pytest.param(spec, stage, id=name, marks=pytest.mark.thorough)
            for name, spec, stage in (
                ("one tensor, ddp", ONE_TENSOR, 0),
                ("many tensors, ddp", MANY_TENSORS, 0),
                ("many tensors, zero 3", MANY_TENSORS, 3),
            )
        ),
    ],
)
def test_a_plan_too_large_for_the_budget_runs_out_of_memory(
    peers: Group, spec: SweepSpec, zero_stage: int
) -> None:
    outcome = peers.run(large_request(spec, zero_stage))

    assert isinstance(outcome, OutOfMemory)
    assert outcome.where == "device"
    assert outcome.limit_bytes == LIMIT_BYTES
    assert outcome.wanted_bytes is not None
    assert outcome.wanted_bytes > LIMIT_BYTES
    assert outcome.excess is not None
    assert 0 < outcome.excess < 4
    assert outcome.phase in ("forward", "backward", "optimizer")
    assert "allocate" in outcome.detail or "the limit is" in outcome.detail
    assert outcome.costs is not None
    assert outcome.costs.residual_bytes < ARENA_BYTES


def test_what_is_freed_before_the_error_arrives_is_still_counted_as_wanted() -> None:
    """The allocator refused, so the plan was over the limit, whatever is held by now."""
    meter = SimpleNamespace(
        bytes_in_use=lambda: LIMIT_BYTES // 2, nearly_full=lambda: False, limit_bytes=LIMIT_BYTES
    )
    worker: Any = SimpleNamespace(
        meter=meter, device=torch.device("cpu"), ranks=SimpleNamespace(rank=0)
    )
    text = f"DefaultCPUAllocator: can't allocate memory: you tried to allocate {MIB} bytes."

    outcome = _ending_of(RuntimeError(text), "forward", worker)

    assert isinstance(outcome, OutOfMemory)
    assert outcome.wanted_bytes is not None
    assert outcome.wanted_bytes > LIMIT_BYTES


class _Malloc(ctypes.Structure):
    """mallinfo2(3)."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def _held(worker: Worker) -> tuple[int, int]:
    """Bytes in use by glibc's count, and resident bytes, after free memory was released."""
    worker.meter.close()
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _Malloc
    malloc = libc.mallinfo2()
    return malloc.uordblks + malloc.hblkhd, psutil.Process().memory_info().rss


@pytest.mark.thorough
def test_failures_in_a_row_leave_nothing_behind(peers: Group) -> None:
    """A leak grows in every round, while a cache grows once."""
    for zero_stage in (0, 2, 3):
        peers.run(large_request(zero_stage=zero_stage))
    held = [peers.call(_held)]

    for _ in range(3):
        for zero_stage in (0, 2, 3, 0):
            assert isinstance(peers.run(large_request(zero_stage=zero_stage)), OutOfMemory)
        held.append(peers.call(_held))

    for of_rank in zip(*held, strict=True):
        used, resident = zip(*of_rank, strict=True)
        assert min(later - earlier for earlier, later in pairwise(used)) < MIB
        assert resident[-1] - resident[0] < ARENA_BYTES


# in the first step, and in a measured one
@pytest.mark.parametrize(
    ("zero_stage", "where", "call"),
    [
        (2, "backward", 3),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in ((0, "forward", 1), (3, "forward", 3), (3, "backward", 1))
        ),
    ],
)
def test_when_one_rank_runs_out_the_others_learn_it_at_once(
    peers: Group, zero_stage: int, where: str, call: int
) -> None:
    spec = a_spec(model=odd_model("allocates", where=where, rank=1, call=call))

    outcomes = peers.run_on_all(a_request(spec, zero_stage=zero_stage, micro_batch=4))

    first, other = outcomes
    assert first == other
    assert isinstance(first, OutOfMemory)
    assert (first.rank, first.phase) == (1, where)
    assert first.wanted_bytes is not None
    assert HUGE_BYTES <= first.wanted_bytes < HUGE_BYTES + LIMIT_BYTES
    peers.assert_trains(zero_stage=zero_stage)
