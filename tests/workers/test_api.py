"""Plans applied to users' own models: they train as a plain loop does, or raise clear errors."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from search_spaces.errors import ClusterError, ModelError
from search_spaces.plan import Plan
from tests.workers.launch import Group
from tests.workers.test_same_training import LOSS_TOLERANCE, SPEC, WORST_STEP, reference_losses
from tests.workers.values import a_plan
from workers.api import apply_plan
from workers.models.built import batch_source
from workers.models.load import build, build_whole
from workers.worker import Worker

STEPS = 4


def _losses(_: Worker, plan: Plan, folder: Path | None) -> list[float]:
    """Losses of a loop with its own model, after the step on the longest samples."""
    source = batch_source(build(SPEC.model, SPEC.train, attention="eager"), SPEC)
    applied = apply_plan(build_whole(SPEC.model, SPEC.train, attention="eager").module, plan, SPEC)
    losses = []
    whole = replace(plan, context=1, data=applied.data, pad_multiple=8)
    for step in range(WORST_STEP, STEPS):
        batches = source.step(whole, applied.data_rank, step).batches
        targets = [batch.targets for batch in batches]
        losses.append(applied.step([batch.inputs for batch in batches], targets))
    if folder is not None:
        applied.save(folder)
    applied.close()
    return losses[1:]


def thorough(**knobs: Any) -> Any:
    return pytest.param(knobs, marks=pytest.mark.thorough)


@pytest.mark.parametrize(
    "knobs",
    [
        {"zero_stage": 3, "batching": "packed"},
        thorough(checkpoint_ratio=0.5, batching="grouped"),
        thorough(tensor=2, data=1),
        thorough(pipeline=2, data=1, micro_batch=1),
        thorough(context=2, accumulation=4),
        thorough(engine="deepspeed", zero_stage=1),
        thorough(engine="deepspeed", zero_stage=3),
    ],
    ids=str,
)
def test_a_loop_of_ones_own_trains_as_a_plain_loop_does(
    pair: Group, knobs: dict[str, Any], tmp_path: Path
) -> None:
    found = pair.call(_losses, a_plan(**knobs), tmp_path)

    assert found[0] == found[1]  # the mean over the global batch, on every rank
    assert found[0] == pytest.approx(reference_losses()[:STEPS], rel=LOSS_TOLERANCE)
    assert any((tmp_path / "rank-0").iterdir())


def _refused(_: Worker, plan: Plan, **config: int) -> str:
    other = SPEC.model.model_copy(update={"config": SPEC.model.config | config})
    try:
        apply_plan(build_whole(other, SPEC.train, attention="eager").module, plan, SPEC)
    except (ClusterError, ModelError) as error:
        return str(error)
    return ""


def _refused_deeper(worker: Worker, plan: Plan) -> str:
    return _refused(worker, plan, num_hidden_layers=3)


def test_a_model_of_another_architecture_is_refused(pair: Group) -> None:
    told = pair.call(_refused_deeper, a_plan())

    assert told[0] == told[1]
    assert "it has 3 repeated blocks instead of 2" in told[0]
    assert "parameters instead of" in told[0]


def test_another_number_of_ranks_is_refused(pair: Group) -> None:
    (told, _) = pair.call(_refused, a_plan(data=4, micro_batch=1))

    assert "the plan needs 4 ranks, but 2 were started" in told
    assert "torchrun --nproc-per-node 4" in told
