"""Expert ranks: the same training as whole experts, and the tokens that each rank gets."""

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from search_spaces.trial import Measured, TrialRequest
from tests.workers.launch import Group, Groups
from tests.workers.one_step import built
from tests.workers.parity.comparison import Parity
from tests.workers.parity.layouts import COMMON, EXPORTS, FURTHER
from tests.workers.test_validation import a_validation
from tests.workers.tracing.experts import EXPERTS, QWEN
from tests.workers.values import a_request, a_spec
from workers.parallel.experts import expert_skew
from workers.worker import Worker

LAYOUTS = {
    name: knobs for name, knobs in {**COMMON, **FURTHER}.items() if name.startswith("expert")
}
SCRIPTS = ("export torchrun, expert ranks", "export torchrun, experts one after the other")
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
