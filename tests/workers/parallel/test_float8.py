"""Products in 8 bits: as torchao's own, in the layers that can, and as fast as others report."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from orchestrator.forecast.calibration import Footprints
from orchestrator.forecast.planner import Planner
from orchestrator.forecast.request import planning_request
from search_spaces.costs.calibration import shipped_calibration
from search_spaces.errors import missing_extra
from search_spaces.hardware.catalogue import find_device
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Measured
from tests.workers.values import a_request, a_spec
from workers.models.load import describe
from workers.plain_torch.blocks import compute_in_float8, has_float8_sizes

ROOT = Path(__file__).parents[3]
RECIPES = ("tensorwise", "rowwise")
SPEC = a_spec()
LEAST_ROUNDING, MOST_ROUNDING = 1e-4, 2e-2  # relative, of a loss; e4m3 keeps 3 bits
REPORTED = {"none": 6150.0, "tensorwise": 7690.0}  # tokens/s a GPU, torchao/float8/README.md
needs_torchao = pytest.mark.skipif(
    missing_extra("torchao") is not None, reason=str(missing_extra("torchao"))
)


class Split(nn.Linear):
    """A layer with a forward of its own."""


def test_plain_layers_whose_sizes_divide_16_are_computed_in_8_bits() -> None:
    hooked = nn.Linear(32, 16)
    hooked.register_forward_pre_hook(lambda *_: None)

    assert has_float8_sizes(nn.Linear(32, 16))
    assert not any(
        map(
            has_float8_sizes,
            (nn.Linear(32, 24), nn.Linear(40, 16), Split(32, 16), hooked, nn.LayerNorm(16)),
        )
    )


def test_facts_tell_how_much_of_the_blocks_that_is() -> None:
    shares = {}
    for name in ("llama-3.2-1b", "gpt2", "mixtral-8x7b"):
        spec = SPEC.model.model_copy(update={"name": name, "config": {}})
        shares[name] = describe(spec, SPEC.train).float8_share

    # norms are not layers, GPT-2 has layers of its own, and experts of a mixture are stacked
    assert shares["llama-3.2-1b"] == pytest.approx(1.0, abs=1e-4)
    assert shares["gpt2"] == 0
    attention = 2 * 4096 * (4096 + 1024)
    experts = 8 * 3 * 4096 * 14_336
    assert shares["mixtral-8x7b"] == pytest.approx(attention / (attention + experts), rel=1e-2)


def rounded(values: torch.Tensor, recipe: str) -> torch.Tensor:
    """Returns values rounded to 8 bits with a scale for the tensor, or for each row."""
    values = values.float()
    largest = values.abs().amax(dim=1, keepdim=True) if recipe == "rowwise" else values.abs().max()
    scale = 448 / largest  # the largest number of e4m3
    if recipe == "rowwise":
        scale = scale.log2().floor().exp2()
    return (values * scale).to(torch.float8_e4m3fn).float() / scale


@needs_torchao
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("tokens", [32, 7])
def test_layers_multiply_in_8_bits_and_train_the_same_weights(recipe: str, tokens: int) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(tokens, 32, dtype=torch.bfloat16)
    block = nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 24)).to(torch.bfloat16)
    weights = dict(block.named_parameters())
    layer, uneven = block

    compute_in_float8([block], recipe)

    expected = rounded(hidden, recipe) @ rounded(layer.weight, recipe).T + layer.bias.float()
    torch.testing.assert_close(block[0](hidden).float(), expected, rtol=1e-2, atol=1e-2)
    assert (layer(hidden).float() - expected).abs().max() > 3e-2  # as in bf16 it is not
    assert block[1] is uneven
    assert all(weight is weights[name] for name, weight in block.named_parameters())
    block(hidden).square().mean().backward()
    assert all(weight.grad is not None for weight in weights.values())


@needs_torchao
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("recipe", "knobs"), [("rowwise", {}), ("tensorwise", {"zero_stage": 3})], ids=["ddp", "fsdp2"]
)
def test_ranks_train_in_8_bits_near_bf16(groups: Any, recipe: str, knobs: dict[str, Any]) -> None:
    losses = []
    for float8 in ("none", recipe):
        request = a_request(SPEC, **knobs, precision="bf16", compile=True, float8=float8)
        outcome = groups.of(2).run(request)
        assert isinstance(outcome, Measured), outcome
        losses.append(outcome.losses)

    apart = [abs(one - other) / other for one, other in zip(*losses, strict=True)]
    assert LEAST_ROUNDING < max(apart) < MOST_ROUNDING


@pytest.mark.thorough
def test_the_forecast_gains_what_others_report() -> None:
    """Llama 3 8B, 8,192 tokens, 8 H100, FSDP2, torch.compile, selective recomputation."""
    seconds = {}
    for float8 in REPORTED:
        tree = {
            "model": "llama-3-8b",
            "data": {"lengths": {8192: 1}},
            "cluster": {"device": "cuda", "workers": 8},
            "train": {"global_batch": 8, "sequence_length": 8192, "precision": "bf16"},
            "space": {"micro_batch": [1], "checkpoint_ratio": [1.0], "zero_stage": [3]}
            | {"checkpoint_mode": ["selective"], "compile": [True], "float8": [float8]}
            | {"engine": ["torch"], "tensor": [1], "pipeline": [1], "context": [1]},
        }
        spec = SweepSpec.model_validate(tree)
        request = planning_request(
            spec, describe(spec.model, spec.train), find_device("H100"), ranks=(8,)
        )
        footprints = Footprints(spec, request.kind, run_code=True)
        best = Planner(request, footprints, shipped_calibration()).plan().best
        assert best is not None
        seconds[float8] = best.forecast.step_seconds.value

    assert seconds["none"] / seconds["tensorwise"] == pytest.approx(
        REPORTED["tensorwise"] / REPORTED["none"], rel=0.1
    )


@pytest.mark.skipif(
    missing_extra("torchao") is None, reason="torchao is installed, so that nothing is skipped"
)
@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_what_needs_torchao_runs_where_it_is_installed(tmp_path: Path) -> None:
    """It is not in the tests' environment, where every process would import it."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*pip, str(tmp_path), "torchao>=0.18,<0.19"], check=True)
    files = [str(Path(__file__).with_name(name)) for name in ("test_float8.py", "test_states.py")]
    needing = ["-k", "8_bits or stochastic", "-m", "thorough or not thorough"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *needing, *files],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout[-4000:]
    assert "skipped" not in ended.stdout
