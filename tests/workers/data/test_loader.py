"""Loader processes: the same batches, no leftovers, and errors that reach the rank."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import psutil
import pytest
import torch

from search_spaces.trial import Crashed, Measured
from tests.workers.launch import Group
from tests.workers.test_same_training import LOSS_TOLERANCE, SPEC, reference_losses
from tests.workers.values import a_plan, a_request, a_spec, odd_model
from workers.data.batches import WORST_STEP, BatchSource, FunctionSource
from workers.data.loader import Feed, batch_feed
from workers.models.built import batch_source
from workers.models.load import build
from workers.worker import Worker

CPU = torch.device("cpu")


def source_of(spec: Any) -> BatchSource:
    return batch_source(build(spec.model, spec.train, attention="sdpa"), spec)


def first_steps(feed: Feed, count: int) -> Iterator[Any]:
    for step in itertools.islice(itertools.count(WORST_STEP), count):
        yield feed(step)


@pytest.mark.parametrize("workers", [1, 2])
def test_batches_are_those_made_inline_and_in_order(workers: int) -> None:
    source, rank, steps = source_of(SPEC), 1, 7
    with batch_feed(source, a_plan(), rank, CPU) as feed:
        inline = list(first_steps(feed, steps))
    with batch_feed(source, a_plan(loader_workers=workers), rank, CPU) as feed:
        ahead = list(first_steps(feed, steps))

    for one, other in zip(inline, ahead, strict=True):
        assert (one.targets, one.tokens) == (other.targets, other.tokens)
        for mine, theirs in zip(one.batches, other.batches, strict=True):
            assert (mine.samples, mine.tokens, mine.targets) == (
                theirs.samples,
                theirs.tokens,
                theirs.targets,
            )
            assert mine.inputs.keys() == theirs.inputs.keys()
            assert all(torch.equal(mine.inputs[name], theirs.inputs[name]) for name in mine.inputs)


@pytest.mark.parametrize("taken", [0, 1, 4])
def test_processes_are_gone_however_few_steps_were_taken(taken: int) -> None:
    source, before = source_of(SPEC), set(psutil.Process().children())
    with batch_feed(source, a_plan(loader_workers=2), 0, CPU) as feed:
        list(first_steps(feed, taken))
        started = set(psutil.Process().children()) - before
        assert len(started) == 2

    assert not any(process.is_running() for process in started)


class _Unspeakable(Exception):
    """An error that cannot be made from its text alone, and cannot be pickled."""

    def __init__(self, where: str, number: int) -> None:
        super().__init__(f"no sample {number} in {where}")
        self.held = lambda: None


def _make(numbers: tuple[int, ...]) -> Mapping[str, torch.Tensor]:
    if 16 in numbers:
        raise _Unspeakable("the cellar", 16)
    return {"x": torch.tensor(numbers)}


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_comes_at_its_step_under_its_name(workers: int) -> None:
    source = FunctionSource(batch_maker=_make)  # samples 16 to 23 are of step 2
    plan = a_plan(loader_workers=workers, data=1, micro_batch=8)
    with batch_feed(source, plan, 0, CPU) as feed:
        assert len(list(first_steps(feed, 3))) == 3
        with pytest.raises(Exception, match="no sample 16 in the cellar") as raised:
            feed(2)

    assert type(raised.value).__name__ == "_Unspeakable"


@pytest.mark.parametrize("fault", [pytest.param("raises", marks=pytest.mark.thorough), "exits"])
def test_an_odd_batch_maker_is_the_crash_that_it_is_inline(pair: Group, fault: str) -> None:
    spec = a_spec(model=odd_model(fault, where="data", rank=1))
    inline, ahead = (
        pair.run(a_request(spec, micro_batch=4, loader_workers=workers)) for workers in (0, 1)
    )

    assert isinstance(inline, Crashed)
    assert isinstance(ahead, Crashed)
    assert (ahead.cause, ahead.rank, ahead.phase, ahead.detail) == (
        inline.cause,
        inline.rank,
        inline.phase,
        inline.detail,
    )
    assert "odd_models.py" in ahead.trace
    assert pair.call(_children) == [0, 0]


def _children(_: Worker) -> int:
    return len(psutil.Process().children())


def test_a_trial_with_loader_processes_trains_the_same(pair: Group) -> None:
    outcome = pair.run(a_request(SPEC, loader_workers=2, loader_pin_memory=True))

    assert isinstance(outcome, Measured)  # page-locked memory is CUDA's and changes nothing here
    assert outcome.losses == pytest.approx(reference_losses(), rel=LOSS_TOLERANCE)
    assert pair.call(_children) == [0, 0]
