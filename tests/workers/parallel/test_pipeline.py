"""Pipelines of several architectures: losses, tied weights, memory, failures.

Ranks are real processes. The reference of losses is a single rank with the whole model.
`test_parity` has each schedule, alone and beside data and tensor ranks.
"""

from pathlib import Path
from typing import Any

import pytest

from search_spaces.plan import Plan, Schedule
from search_spaces.specification.schema import ModelSpec, SweepSpec
from search_spaces.trial import Measured, OutOfMemory, TrialRequest
from tests.workers.launch import Group, Groups
from tests.workers.models.tiny_models import TINY_BERT, TINY_GPT2
from tests.workers.one_step import built
from tests.workers.parity.architectures import spec_of
from tests.workers.parity.comparison import Expected, Parity
from tests.workers.tracing.experts import MIXTRAL
from tests.workers.values import a_plan, a_request, a_spec
from workers.worker import Worker

# as in test_same_training: fp32 keeps 7 digits, sums run in another order
LOSS_TOLERANCE = 2e-5  # relative
MORE = pytest.mark.thorough
FOUR_BLOCKS = {"vocab_size": 512, "num_hidden_layers": 4}


def small(spec: ModelSpec, task: str, layers: int = 3) -> dict[str, Any]:
    """A tiny model without dropout and with as many blocks."""
    config = {name: value for name, value in spec.config.items() if name != "n_layer"}
    return {"name": spec.name, "task": task, "config": config | {"num_hidden_layers": layers}}


MODELS = {
    "gpt2": small(TINY_GPT2, "causal-lm"),
    "deep": small(TINY_GPT2, "causal-lm", 4),
    "bert": small(TINY_BERT, "masked-lm"),
    "gpt2-classes": small(TINY_GPT2, "sequence-classification"),
    "experts": MIXTRAL | {"config": MIXTRAL["config"] | FOUR_BLOCKS},
    "function": {"name": "tests.workers.parallel.stacked_model:make"},
}


def two_stages(**knobs: Any) -> Plan:
    return a_plan(**{"data": 1, "pipeline": 2} | knobs)


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("gpt2", two_stages(batching="grouped", checkpoint_ratio=1.0)),
        pytest.param("bert", two_stages(), marks=MORE),
        pytest.param("gpt2-classes", two_stages(micro_batch=1), marks=MORE),
        pytest.param("deep", two_stages(pipeline_schedule="dualpipev"), marks=MORE),
        *(
            pytest.param(name, two_stages(pipeline_schedule=schedule), marks=MORE)
            for name, schedule in (
                *(("function", "interleaved"), ("function", "interleaved_zero_bubble")),
                *(("experts", "1f1b"), ("experts", "zbv"), ("experts", "interleaved_zero_bubble")),
            )
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value.pipeline_schedule,
)
def test_two_stages_train_as_one_process_does(
    pair: Group, alone: Group, name: str, plan: Plan
) -> None:
    """Adds architectures to those of `test_parity`, which has each schedule and split."""
    spec = a_spec(model=MODELS[name])
    whole = alone.run(TrialRequest(number=0, plan=a_plan(data=1, micro_batch=4), spec=spec))

    outcome = pair.run(TrialRequest(number=0, plan=plan, spec=spec))

    assert isinstance(whole, Measured)
    assert isinstance(outcome, Measured), getattr(outcome, "trace", outcome)
    assert outcome.losses == pytest.approx(whole.losses, rel=LOSS_TOLERANCE)


@pytest.mark.thorough
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved_zero_bubble", "zbv"])
def test_a_tied_weight_of_gpt2_counts_once(groups: Groups, schedule: Schedule) -> None:
    """Compares gradients, and the norm to which they are clipped."""
    spec = spec_of("causal-lm", Path("none")).model_dump() | {"model": MODELS["deep"]}
    expected = Expected(SweepSpec.model_validate(spec))
    knobs = {"pipeline": 2, "data": 1, "pipeline_schedule": schedule}

    (row,) = Parity(groups).of_layouts("gpt2", expected, {"": knobs})

    assert (row.ending, row.detail) == ("same", "")


@MORE
def test_a_rank_holds_its_own_stages_alone(pair: Group) -> None:
    ranks = pair.call(_weight_bytes, two_stages(), a_spec(model=MODELS["gpt2"]))

    block, embedding, positions, norm = 12_704, 512 * 32, 128 * 32, 64  # as GPT-2 is built
    assert ranks == [4 * (embedding + positions + block), 4 * (2 * block + norm + embedding)]

    both_ends = two_stages(pipeline_schedule="zbv")  # with the tied weight once
    ranks = pair.call(_weight_bytes, both_ends, a_spec(model=MODELS["deep"]))
    assert ranks == [4 * (embedding + positions + 2 * block + norm), 4 * 2 * block]


def _weight_bytes(worker: Worker, plan: Plan, spec: SweepSpec) -> int:
    weights: int = (
        built(worker, TrialRequest(number=0, plan=plan, spec=spec)).training.state_bytes().weights
    )
    return weights


@pytest.mark.parametrize(
    ("rank", "schedule"),
    [(0, "1f1b"), *(pytest.param(1, name, marks=MORE) for name in ("interleaved", "zbv"))],
)
def test_when_a_stage_runs_out_of_memory_the_others_learn_it_at_once(
    pair: Group, rank: int, schedule: str
) -> None:
    sound = a_spec(model=MODELS["function"])
    faulty = a_spec(model=MODELS["function"] | {"config": {"rank": rank, "call": 3}})
    plan = {"data": 1, "pipeline": 2, "pipeline_schedule": schedule}

    outcomes = pair.run_on_all(a_request(faulty, **plan))

    first, other = outcomes
    assert first == other
    assert isinstance(first, OutOfMemory), getattr(first, "trace", first)
    assert (first.rank, first.phase) == (rank, "backward")
    assert first.wanted_bytes is not None
    assert first.wanted_bytes >= 2**30
    assert isinstance(pair.run(a_request(sound, **plan)), Measured)
