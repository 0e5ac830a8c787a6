"""Blocks split over tensor ranks: architectures, memory, users' models, failures.

`test_parity` has them beside data ranks, stages and other techniques.
"""

from pathlib import Path
from typing import Any

import pytest

from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Crashed, Measured, OutOfMemory
from tests.workers.launch import Group, Groups
from tests.workers.parallel.split_models import ARCHITECTURES, split_spec
from tests.workers.parity.comparison import Expected, Parity
from tests.workers.parity.layouts import Knobs
from tests.workers.values import STEPS, a_request, a_spec, odd_model
from workers.models.load import build
from workers.models.tensor_plan import tensor_facts
from workers.prepare import prepare

MORE = pytest.mark.thorough
# fp32 keeps 7 digits; sums run in another order, and AdamW carries it on through 7 updates
LOSS_TOLERANCE = 2e-5  # relative
IN_SEQUENCE = tuple(name for name in ARCHITECTURES if name != "t5")
TWO = {"tensor": 2, "data": 1, "micro_batch": 4}
ODD_PLAN = {"layers.0": "colwise", "layers.1": "rowwise"}


@pytest.mark.parametrize(
    "architecture",
    [pytest.param(one, marks=() if one == "qwen3" else MORE) for one in ARCHITECTURES],
)
def test_split_blocks_train_as_the_plain_loop(
    groups: Groups, tmp_path: Path, architecture: str
) -> None:
    expected = Expected(split_spec(architecture, tmp_path))
    layouts: dict[str, Knobs] = {"tensor": TWO}
    if architecture in IN_SEQUENCE:
        further = {"sequence_parallel": True, "checkpoint_ratio": 0.5, "attention": "eager"}
        layouts["sequence"] = TWO | further

    rows = Parity(groups).of_layouts(architecture, expected, layouts)

    assert {row.layout: (row.ending, row.detail) for row in rows} == dict.fromkeys(
        layouts, ("same", "")
    )


def losses(group: Group, spec: SweepSpec, **knobs: Any) -> tuple[float, ...]:
    outcome = group.run(a_request(spec, **knobs))
    assert isinstance(outcome, Measured), outcome
    assert len(outcome.losses) == STEPS
    return outcome.losses


def test_a_function_of_the_user_is_split_by_the_plan_in_its_spec(alone: Group, pair: Group) -> None:
    spec = a_spec(model=odd_model("none") | {"tensor_plan": ODD_PLAN})
    expected = losses(alone, spec, data=1, micro_batch=4)

    assert prepare(spec).tensor.refusal is None
    assert losses(pair, spec, **TWO) == pytest.approx(expected, rel=LOSS_TOLERANCE)


@MORE
def test_rows_that_cannot_be_split_evenly_are_a_crash_and_no_abort(pair: Group) -> None:
    """Rows of a function are as long as its batch maker makes them."""
    spec = a_spec(model={"name": "tests.workers.odd_models:make_answering"})

    outcome = pair.run(a_request(spec, **TWO, sequence_parallel=True))

    assert isinstance(outcome, Crashed)
    assert "splits rows over 2 tensor ranks" in outcome.detail
    pair.assert_trains(**TWO)


@pytest.mark.parametrize("where", [pytest.param("forward", marks=MORE), "backward"])
def test_when_one_rank_runs_out_its_tensor_peer_learns_it_at_once(pair: Group, where: str) -> None:
    model = odd_model("allocates", where=where, rank=1, call=3) | {"tensor_plan": ODD_PLAN}

    first, other = pair.run_on_all(a_request(a_spec(model=model), **TWO))

    assert first == other
    assert isinstance(first, OutOfMemory)
    assert (first.rank, first.phase) == (1, where)
    pair.assert_trains(**TWO)


def test_facts_of_what_is_tested_here_refuse_nothing(tmp_path: Path) -> None:
    for architecture in ARCHITECTURES:
        spec = split_spec(architecture, tmp_path)
        facts = tensor_facts(build(spec.model, spec.train, attention="sdpa").module)
        assert facts.refusal is None, architecture
        assert (facts.sequence_refusal is None) == (architecture in IN_SEQUENCE), architecture
