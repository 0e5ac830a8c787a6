"""The host's time per operator of a block, in the units of a footprint."""

import time

import pytest
import torch

from search_spaces.costs.plan_encoding import VariantKey
from search_spaces.specification.schema import ModelSpec, SweepSpec
from search_spaces.specification.sections import TrainSpec
from workers.probe import block
from workers.probe.block import block_launches, cached_block_launches
from workers.tracing.trace import trace

CPU = torch.device("cpu")
LLAMA = ModelSpec(name="llama-3.2-1b")


def train(precision: str) -> TrainSpec:
    return TrainSpec.model_validate(
        {"global_batch": 1, "sequence_length": 16, "precision": precision}
    )


@pytest.mark.cases_by_default(1)
@pytest.mark.parametrize("name", ["llama-3.2-1b", "gpt2"])
@pytest.mark.parametrize(("precision", "compute"), [("bf16", "autocast"), ("fp32", "fp32")])
def test_operators_are_counted_as_a_footprint_counts_them(
    name: str, precision: str, compute: str
) -> None:
    spec = SweepSpec(model=ModelSpec(name=name), train=train(precision))
    variant = VariantKey("sdpa", compute, "none")
    footprint = trace(spec, [variant], device="cpu")  # type: ignore[list-item]
    traced = footprint.variant(*variant).blocks[0].part  # type: ignore[arg-type]
    small, *runs = block._small_block(spec.model, spec.train, CPU)
    counted = []
    for run in runs:
        small.zero_grad()
        counted.append(block._launches(block._backpropagated(run, spec.train.precision, CPU)))
    eager, selective = counted

    assert eager == pytest.approx(traced.forward.launches + traced.backward.launches, abs=4)
    assert selective - eager == pytest.approx(traced.recomputed.launches, abs=4)


def test_a_measured_launch_is_a_share_of_the_blocks_time() -> None:
    """A stopwatch of our own around the same block; its fastest pass in each."""
    found = block_launches(LLAMA, train("fp32"), CPU, seconds=0.2, compiles=False)
    _, call, _ = block._small_block(LLAMA, train("fp32"), CPU)
    run = block._backpropagated(call, "fp32", CPU)
    launches = block._launches(run)
    passes = []
    for _ in range(200):
        started = time.perf_counter()
        run()
        passes.append(time.perf_counter() - started)

    assert found.block_launch_seconds is not None
    assert 0.1 < found.block_launch_seconds * launches / min(passes) < 10
    assert found.recomputed_launch_seconds is not None
    assert found.recomputed_launch_seconds > found.block_launch_seconds / 2
    assert found.compiled_launch_seconds is None


def test_an_earlier_measurement_of_the_same_machine_is_used_again(
    tmp_path: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    here, there = ({"host": name} for name in ("one", "another"))
    first = cached_block_launches(LLAMA, train("fp32"), CPU, here)

    assert cached_block_launches(LLAMA, train("fp32"), CPU, here) == first
    assert cached_block_launches(LLAMA, train("fp32"), CPU, there) != first


@pytest.mark.thorough
@pytest.mark.slow
def test_a_compiled_block_launches_faster() -> None:
    found = block_launches(LLAMA, train("fp32"), CPU, seconds=0.2, compiles=True)

    assert 0 < (found.compiled_launch_seconds or 0) < (found.block_launch_seconds or 0)
