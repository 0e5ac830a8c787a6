"""MLPs compute tiles of the sequence: as the whole, in the memory that is forecast."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from orchestrator.forecast.calibration import Footprints
from orchestrator.forecast.planner import Planner, PlanningReport
from orchestrator.forecast.request import planning_request
from search_spaces.costs.calibration import shipped_calibration
from search_spaces.costs.footprint import Compute, Pass
from search_spaces.costs.plan_encoding import VariantKey
from search_spaces.hardware.catalogue import find_device
from search_spaces.plan import MlpTiles
from search_spaces.specification.schema import SweepSpec
from search_spaces.specification.template import example_files
from search_spaces.trial import Measured, OutOfMemory
from tests.workers.launch import Group
from tests.workers.tracing.footprint_check import peak_bytes
from tests.workers.values import LLAMA, STEPS, a_request, a_spec
from workers.models.load import describe
from workers.plain_torch.blocks import tile_mlps
from workers.tracing.trace import trace

TILES: tuple[MlpTiles, ...] = (1, 4, 8)
WIDE = 1024  # of an MLP
ROOMY = a_spec(
    model={**LLAMA, "config": {**LLAMA["config"], "intermediate_size": WIDE}},
    data={"lengths": {512: 1}},
    cluster={"memory_gib": 4.0},
    train={"sequence_length": 512},
)
FALL_ERROR = 0.1
SHORT = 512  # tokens
WIDER = {"vocab_size": 16_000, "intermediate_size": 2816}  # eight times the demo's
DEMO_GIB = 0.3  # with room for noise
REAL_GIB = 0.45  # of a rank under mmap: 512 tokens took 0.39 GiB


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
        self.rows: list[int] = []
        self.mlp[0].register_forward_hook(lambda _, __, output: self.rows.append(output.shape[1]))


@pytest.mark.parametrize(("tokens", "rows"), [(10, [3, 3, 2, 2]), (2, [1, 1, 0, 0])])
def test_each_tile_is_computed_in_forward_and_again_in_backward(
    tokens: int, rows: list[int]
) -> None:
    block, hidden = Block(), torch.randn(3, tokens, 8, requires_grad=True)
    weights = [hidden, *block.parameters()]
    expected = torch.autograd.grad(block.mlp(hidden).square().sum(), weights)
    block.rows.clear()
    assert tile_mlps([block], 4) == 1

    output = block.mlp(hidden)
    assert block.rows == rows
    found = torch.autograd.grad(output.square().sum(), weights)

    assert sorted(block.rows) == sorted(2 * rows)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.thorough
def test_ranks_of_zero_3_gather_alike_for_samples_shorter_than_the_tiles() -> None:
    spec, group = a_spec(data={"lengths": {3: 1, 40: 1}}), Group(2, a_spec())
    plans: tuple[dict[str, Any], ...] = ({"mlp_tiles": 8, "prefetch_mib": 1}, {})
    losses = []
    for knobs in plans:
        request = a_request(spec, engine="deepspeed", zero_stage=3, batching="grouped", **knobs)
        outcome = group.run(replace(request, collective_seconds=120.0))
        assert isinstance(outcome, Measured), outcome
        losses.append(outcome.losses)
    group.stop()

    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("compute", ["fp32", "cast"])
def test_a_trace_sees_the_tiles(compute: Compute, tmp_path: Path) -> None:
    wanted = [VariantKey("sdpa", compute, "none", mlp_tiles=tiles) for tiles in TILES]
    variants = trace(ROOMY, wanted, device="cpu", cache=tmp_path).variants
    whole, four, eight = (variant.blocks[0].part for variant in variants)
    product, element_bytes = 4 * 512 * 64 * WIDE, 4 if compute == "fp32" else 2

    for part, tiles in ((four, 4), (eight, 8)):
        # gate, up, their activation and their product are saved of no token
        saved = whole.saved_bytes.at(4) - part.saved_bytes.at(4)
        assert saved == pytest.approx(4 * 4 * 512 * WIDE * element_bytes, rel=0.05)
        assert _multiplied(part.forward) == pytest.approx(_multiplied(whole.forward))
        # gate and up are computed twice
        again = _multiplied(part.backward) - _multiplied(whole.backward)
        assert again == pytest.approx(2 * product)
        of_tile = 4 * 4 * 512 * WIDE * element_bytes / tiles
        assert of_tile < part.backward.transient_bytes.at(4) < 2 * of_tile + 2e6


def _multiplied(work: Pass) -> float:
    return sum(
        one.count * math.prod(float(size.at(4)) for size in (one.rows, one.columns, one.inner))
        for one in work.matmuls
    )


@pytest.mark.thorough
def test_the_peak_of_a_step_falls_as_traced() -> None:
    """Prints what `docs/knobs.md` says; the resident memory of a rank is measured."""
    group, peaks, traced = Group(1, ROOMY), [], []
    group.return_freed()
    wanted = [VariantKey("sdpa", "fp32", "none", mlp_tiles=tiles) for tiles in TILES]
    for variant in trace(ROOMY, wanted).variants:
        request = a_request(ROOMY, mlp_tiles=variant.mlp_tiles, data=1, micro_batch=8)
        outcome = group.run(request)
        assert isinstance(outcome, Measured), outcome
        peaks.append(outcome.memory.peak_bytes)
        traced.append(peak_bytes(variant, 8))
        seconds = outcome.step_seconds.value
        print(f"{variant.mlp_tiles} tiles: {peaks[-1] / 1e6:.0f} MB, {seconds:.2f} s a step")
    group.stop()

    assert peaks[0] > 1.5 * peaks[1]
    for peak, forecast in zip(peaks[1:], traced[1:], strict=True):
        assert peaks[0] - peak == pytest.approx(traced[0] - forecast, rel=FALL_ERROR)


def demo_spec(tokens: int, memory_gib: float, **space: list[Any]) -> SweepSpec:
    """Returns the spec of a wider demo on samples of so many tokens."""
    tree = yaml.safe_load(example_files("demo")["demo.yaml"])
    tree["model"]["config"] |= WIDER
    tree["cluster"]["memory_gib"] = memory_gib
    tree["train"] |= {"global_batch": 2, "sequence_length": tokens}
    tree |= {"data": {"lengths": {tokens: 1}}}
    tree["objective"] = {"max_steps": STEPS, "max_seconds": 600}
    tree["space"] |= space
    return SweepSpec.model_validate(tree)


def demo_report(tokens: int, **space: list[Any]) -> PlanningReport:
    spec = demo_spec(tokens, DEMO_GIB, **space)
    request = planning_request(spec, describe(spec.model, spec.train), find_device("cpu"))
    footprints = Footprints(spec, request.kind, run_code=True)
    return Planner(request, footprints, shipped_calibration()).plan()


@pytest.mark.thorough
def test_samples_four_times_as_long_are_forecast_to_fit_with_tiles_and_a_chunked_loss() -> None:
    alone: dict[str, list[Any]] = {"loss": ["whole"], "mlp_tiles": [1]}
    short = demo_report(SHORT, **alone)
    long = demo_report(4 * SHORT, **alone)
    chunked = demo_report(4 * SHORT, loss=["chunked"], mlp_tiles=[1])
    both = demo_report(4 * SHORT, loss=["chunked"], mlp_tiles=[8])

    assert short.best is not None
    assert long.best is None
    assert chunked.best is None
    assert both.best is not None


@pytest.mark.thorough
def test_samples_four_times_as_long_fit_the_same_ranks_with_tiles_and_a_chunked_loss() -> None:
    plans: list[tuple[int, dict[str, Any], bool]] = [
        (SHORT, {}, True),
        (4 * SHORT, {}, False),
        (4 * SHORT, {"loss": "chunked"}, False),
        (4 * SHORT, {"loss": "chunked", "mlp_tiles": 4}, True),
    ]
    group = Group(2, demo_spec(SHORT, REAL_GIB))
    group.return_freed()
    for tokens, knobs, fits in plans:
        spec = demo_spec(tokens, REAL_GIB)
        outcome = group.run(a_request(spec, micro_batch=1, accumulation=1, **knobs))
        assert isinstance(outcome, Measured if fits else OutOfMemory), (tokens, knobs, outcome)
    group.stop()
