"""Expert ranks: the same training as whole experts, and the tokens that each rank gets."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import MixtralConfig, MixtralForCausalLM
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from search_spaces.settings.blocks import BlockSettings
from search_spaces.trial import Measured, TrialRequest
from tests.workers.launch import Group, Groups, peaks_of
from tests.workers.one_step import built
from tests.workers.parity.comparison import Parity
from tests.workers.parity.layouts import COMMON, EXPORTS, FURTHER
from tests.workers.test_validation import a_validation
from tests.workers.tracing.experts import EXPERTS, QWEN
from tests.workers.values import LLAMA, a_request, a_spec
from workers.parallel.apply import wrap_blocks
from workers.parallel.experts import expert_skew
from workers.worker import Worker

LAYOUTS = {
    name: knobs for name, knobs in {**COMMON, **FURTHER}.items() if name.startswith("expert")
}
SCRIPTS = (
    *("export torchrun, expert ranks", "export torchrun, experts one after the other"),
    *("export accelerate, expert ranks", "export hf-trainer, expert ranks"),
)
MORE = pytest.mark.thorough


@pytest.mark.parametrize(
    "model",
    ["mixtral", *(pytest.param(one, marks=MORE) for one in ("qwen3_moe", "olmoe", "gpt_oss"))],
)
def test_experts_train_as_in_the_plain_loop(groups: Groups, model: str) -> None:
    layouts = {**LAYOUTS, **{name: EXPORTS[name][1] for name in SCRIPTS}}
    rows = list(Parity(groups).of_model("causal-lm", model, layouts))

    assert [(row.layout, row.ending, row.detail) for row in rows] == [
        (name, "same", "") for name in layouts
    ]


def _routed(worker: Worker, request: TrialRequest) -> tuple[list[list[int]], float]:
    """Returns the tokens of each layer that the router sends to each rank, and the skew."""
    ours = built(worker, request)
    assert ours.mesh is not None
    ranks = request.plan.experts
    layers = [part for part in ours.module.modules() if hasattr(part, "routed_tokens")]
    counts = [[0] * ranks for _ in layers]

    def watch(layer: nn.Module, count: list[int]) -> None:
        def look(_: nn.Module, arguments: tuple[Any, ...]) -> None:
            owners = arguments[1] // layer.num_experts
            for rank in range(ranks):
                count[rank] += int((owners == rank).sum())

        layer.register_forward_pre_hook(look)

    for layer, count in zip(layers, counts, strict=True):
        watch(layer, count)
    ours.step()
    skew = expert_skew(ours.module, ours.mesh, worker.device)
    ours.training.close()
    return counts, skew


def test_the_skew_is_that_of_the_routers_choices(pair: Group) -> None:
    spec = a_spec(model=QWEN)
    (mine, skew), (other, same) = pair.call(_routed, a_request(spec, zero_stage=3, experts=2))

    shares = []
    for layers in zip(mine, other, strict=True):
        tokens = [sum(column) for column in zip(*layers, strict=True)]
        shares.append(max(tokens) / (sum(tokens) / 2))
    assert len(shares) == QWEN["config"]["num_hidden_layers"]
    assert skew == same == pytest.approx(sum(shares) / len(shares))
    assert skew > 1


@pytest.mark.parametrize("name", [pytest.param(one, marks=MORE) for one in EXPERTS])
def test_a_checkpoint_has_the_experts_of_all_ranks(pair: Group, name: str, tmp_path: Path) -> None:
    spec = a_spec(model=EXPERTS[name])
    sizes = []
    for experts in (1, 2):
        knobs = {"zero_stage": 3, "attention": "eager", "experts": experts}
        outcome = pair.run(a_validation(spec, tmp_path, **knobs))
        assert isinstance(outcome, Measured), outcome
        assert outcome.validation is not None
        sizes.append(outcome.validation.checkpoint_bytes)
    assert sizes[0] == pytest.approx(sizes[1], rel=0.05)


def test_the_kernel_of_a_plan_computes_the_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses do not tell: all kernels compute the same."""
    calls: list[int] = []
    batched = ALL_EXPERTS_FUNCTIONS["batched_mm"]

    def counted(*given: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return batched(*given)

    monkeypatch.setitem(ALL_EXPERTS_FUNCTIONS, "batched_mm", counted)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    config = MixtralConfig(**sizes, num_key_value_heads=2, num_hidden_layers=2, vocab_size=32)
    model, ids = MixtralForCausalLM(config), torch.zeros(1, 4, dtype=torch.int64)
    for kernel, layers in (("grouped_mm", 0), ("batched_mm", 2)):
        settings = BlockSettings(recomputed=(), experts_kernel=kernel)
        wrap_blocks(model, list(model.model.layers), settings)
        model(ids)
        assert len(calls) == layers, kernel


@pytest.mark.thorough
def test_two_expert_ranks_gather_fewer_experts() -> None:
    """Prints what `docs/knobs.md` says; the resident memory of a rank is measured."""
    mixture = {
        "name": "mixtral-8x7b",
        "config": {k: v for k, v in LLAMA["config"].items() if k != "intermediate_size"}
        | {"hidden_size": 256, "intermediate_size": 1024, "num_local_experts": 16},
    }
    spec = a_spec(model=mixture, cluster={"memory_gib": 4.0})
    requests = [a_request(spec, zero_stage=2, experts=ranks) for ranks in (1, 2)]
    whole, divided = peaks_of(*requests)

    assert divided < 0.9 * whole
