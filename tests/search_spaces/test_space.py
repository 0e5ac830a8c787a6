"""`space`: every candidate is legal, and no legal plan is missing."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from search_spaces.errors import SpecError
from search_spaces.knobs.registry import KNOBS
from search_spaces.knobs.search_defaults import DomainContext
from search_spaces.plan import CHOICES, Plan
from search_spaces.plan_table import PlanTable
from search_spaces.rules.base import RuleContext
from search_spaces.rules.registry import RULES, refusal, refused_rows, rule_out
from search_spaces.space import build_space, combinations
from search_spaces.specification.space_section import SpaceSpec
from tests.plans import ddp_plan
from tests.search_spaces.knob_pairs import Planted
from tests.search_spaces.values import a_cluster, a_model, a_spec, around


def some(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | st.lists(values, min_size=1, max_size=4)


MOST = 3000  # combinations; more take their time and show no more
SPACES = st.fixed_dictionaries(
    {
        "engine": st.none() | st.just(["torch", "deepspeed"]),
        "tensor": st.none() | st.just([1, 2]),
        "pipeline": st.none() | st.just([1, 2]),
        "pipeline_schedule": some(st.sampled_from(CHOICES["pipeline_schedule"])),
        "zero_stage": some(st.sampled_from(CHOICES["zero_stage"])),
        "offload_optimizer": st.none() | st.just(["none", "cpu"]),
        "offload_parameters": st.none() | st.just(["none", "cpu"]),
        "micro_batch": some(st.sampled_from([1, 2, 3, 4, 5, 8, 16])),
        "checkpoint_ratio": some(st.floats(0, 1)),
        "attention": some(st.sampled_from(CHOICES["attention"])),
        "precision": some(st.sampled_from(CHOICES["precision"])),
        "batching": some(st.sampled_from(CHOICES["batching"])),
        "data": some(st.sampled_from([1, 2, 4, 7])),
    }
)
MODELS = st.builds(
    a_model,
    blocks=st.integers(0, 40),
    attentions=st.sampled_from([(), ("sdpa",), ("sdpa", "eager")]),
    packing=st.sampled_from([(), ("sdpa",), ("sdpa", "eager")]),
)


@given(
    space=SPACES,
    model=MODELS,
    workers=st.sampled_from([1, 2, 3, 4, 8]),
    device=st.sampled_from(["cpu", "cuda"]),
    global_batch=st.sampled_from([1, 7, 24, 32, 48, 96]),
    lengths=st.sampled_from([{}, {64: 1.0, 128: 1.0}]),
)
def test_candidates_are_legal_and_all_are_counted(
    space: Any, model: Any, workers: int, device: str, global_batch: int, lengths: Any
) -> None:
    spec = a_spec(space=space, train={"global_batch": global_batch}, data={"lengths": lengths})
    context = around(spec=spec, model=model, cluster=a_cluster(slots=workers, device=device))
    counted = len(combinations(context, workers))
    assume(counted <= MOST)
    try:
        built = build_space(context, workers)
    except SpecError:  # nothing is legal; the tests below look at what is said
        event("nothing is legal")
        return

    assert all(refusal(plan, context) is None for plan in built.candidates)
    assert {plan.global_batch for plan in built.candidates} == {global_batch}
    assert len(set(built.candidates)) == len(built.candidates)
    assert built.baseline in built.candidates
    assert len(built.candidates) + sum(count for _, count in built.ruled_out) == counted
    assert {name for name, _ in built.ruled_out} <= set(RULES) - {"knob_at_default"}
    for name, values in built.domains:
        assert {getattr(plan, name) for plan in built.candidates} <= set(values)


def one_by_one(
    around: RuleContext, workers: int, chosen: dict[str, Any], level: int = 0
) -> Iterator[dict[str, Any]]:
    """Enumerates all combinations plan by plan; each knob sees all knobs before it."""
    if level == len(KNOBS):
        yield dict(chosen)
        return
    knob = KNOBS[level]
    choice = DomainContext(
        spec=around.spec, model=around.model, cluster=around.cluster, workers=workers, chosen=chosen
    )
    for value in knob.values(choice):
        yield from one_by_one(around, workers, chosen | {knob.name: value}, level + 1)


@given(
    space=SPACES,
    model=MODELS,
    workers=st.sampled_from([1, 2, 4, 16]),
    device=st.sampled_from(["cpu", "cuda"]),
    global_batch=st.sampled_from([1, 7, 24, 32, 96]),
    lengths=st.sampled_from([{}, {64: 1.0, 128: 1.0}]),
)
def test_columns_are_ruled_as_plans_one_by_one(
    space: Any, model: Any, workers: int, device: str, global_batch: int, lengths: Any
) -> None:
    spec = a_spec(space=space, train={"global_batch": global_batch}, data={"lengths": lengths})
    cluster = a_cluster(slots=workers, device=device)
    context = around(spec=spec, model=model, cluster=cluster)
    table = combinations(context, workers)
    assume(len(table) <= MOST)
    legal, ruled, said = list[Plan](), Counter[str](), dict[str, str]()
    met: dict[str, set[Any]] = {knob.name: set() for knob in KNOBS}
    for knobs in one_by_one(context, workers, {}):
        for name, value in knobs.items():
            met[name].add(value)
        accumulation, rest = divmod(global_batch, knobs["micro_batch"] * knobs["data"])
        plan = Plan(accumulation=max(accumulation, 1), **knobs)
        if refused := refusal(plan, context):
            assert rest == 0 or refused.rule == "global_batch_is_kept"
            ruled[refused.rule] += 1
            said.setdefault(refused.rule, refused.detail)
        else:
            legal.append(plan)

    assert len(table) == len(legal) + ruled.total()
    if len(table):
        assert {name: set(table.values[name]) for name in met} == met
    ruling = rule_out(table, context)
    assert list(table.take(ruling.legal)) == legal
    assert ruling.ruled_out == ruled
    told = {name: refused.detail for name, refused in ruling.examples.items()}
    assert list(told.items()) == list(said.items())


def test_a_rule_is_asked_once_for_each_case_it_tells_apart() -> None:
    """Covers knobs that are read through a property, or only for some values of another knob."""
    asked = 0

    def few_ranks(plan: Plan, _: RuleContext) -> str | None:
        nonlocal asked
        asked += 1
        if plan.engine == "torch":
            return None
        return "too many" if plan.world_size > 4 else None

    plans = [
        ddp_plan(engine=engine, data=data, tensor=tensor, micro_batch=micro)
        for engine in ("torch", "deepspeed")
        for data in (1, 2, 4)
        for tensor in (1, 2)
        for micro in range(1, 100)
    ]
    refused = refused_rows(PlanTable.of(plans), few_ranks, around())

    assert refused is not None
    assert refused.tolist() == [p.engine == "deepspeed" and p.data * p.tensor > 4 for p in plans]
    assert asked <= 1 + 2 + 2 * 3 * 2  # with nothing known, by engine, by all that is read


def test_a_million_plans_are_a_space() -> None:
    """All plans are enumerated: the count is the product of the numbers of values."""
    space = {
        "micro_batch": list(range(1, 1001)),
        "bucket_mib": list(range(1, 51)),
        "loader_workers": list(range(20)),
        "attention": ["sdpa"],
        "checkpoint_ratio": [0.0],
        "zero_stage": [0],
    }
    spec = a_spec(space=space, train={"global_batch": 2000, "precision": "fp32"})

    built = build_space(around(spec=spec), 2)

    dividing = [micro for micro in range(1, 1001) if 1000 % micro == 0]
    assert len(built.candidates) == len(dividing) * 50 * 20
    assert built.ruled_out == (("global_batch_is_kept", (1000 - len(dividing)) * 50 * 20),)
    last = built.candidates[-1]
    assert (last.micro_batch, last.bucket_mib, last.loader_workers) == (1000, 50, 19)
    assert (last.accumulation, last in built.candidates) == (1, True)


def test_each_knob_is_a_field_of_plan_and_of_the_spec() -> None:
    names = {knob.name for knob in KNOBS}

    assert not (found := incomplete(Plan)), "\n".join(found)
    assert names == set(SpaceSpec.model_fields)
    assert names | {"accumulation"} == set(Plan.__dataclass_fields__)


@pytest.mark.parametrize("name", SpaceSpec.model_fields)
def test_the_specification_takes_the_type_of_the_plan(name: str) -> None:
    lists = get_args(get_type_hints(SpaceSpec)[name])[0]  # `tuple[TYPE, ...] | None`

    assert get_args(lists) == (get_type_hints(Plan)[name], ...)


def incomplete(plan_type: type[Plan]) -> list[str]:
    """Returns a sentence for each field of a plan that is not declared as a knob."""
    names = {knob.name for knob in KNOBS} | {"accumulation"}  # which follows from other knobs
    return [
        f"{each.name}: declare it as a Knob in search_spaces/knobs/"
        for each in fields(plan_type)
        if each.name not in names
    ]


def test_a_new_knob_that_is_not_declared_is_found() -> None:
    assert incomplete(Planted) == ["static_graph: declare it as a Knob in search_spaces/knobs/"]


def test_the_baseline_is_what_a_user_would_start_with() -> None:
    baseline = build_space(around(), 2).baseline

    knobs = baseline.as_dict()
    assert knobs["zero_stage"] == 0
    assert knobs["micro_batch"] == 1
    assert knobs["checkpoint_ratio"] == 0
    assert (knobs["attention"], knobs["batching"]) == ("sdpa", "padded")
    assert (knobs["engine"], knobs["data"]) == ("torch", 2)


def test_the_baseline_is_the_same_where_everything_is_searched() -> None:
    space = {
        "engine": ["deepspeed", "torch"],
        "tensor": [2, 1],
        "pipeline": [2, 1],
        "offload_optimizer": ["cpu", "none"],
        "offload_parameters": ["cpu", "none"],
        "compile": [True, False],
        "loader_workers": [2, 0],
    }
    wide = around(spec=a_spec(space=space), cluster=a_cluster(slots=4))

    plain = around(spec=a_spec(), cluster=a_cluster(slots=4))
    assert build_space(wide, 4).baseline == build_space(plain, 4).baseline


def test_the_baseline_of_the_specification_is_searched_and_comes_first() -> None:
    today = {"zero_stage": 3, "micro_batch": 2, "checkpoint_ratio": 0.3, "compile": True}
    built = build_space(around(spec=a_spec(baseline=today), cluster=a_cluster(slots=2)), 2)
    impossible = a_spec(baseline={"zero_stage": 1, "micro_batch": 2})  # of engine torch
    nearest = build_space(around(spec=impossible, cluster=a_cluster(slots=2)), 2).baseline

    assert {name: getattr(built.baseline, name) for name in today} == today
    assert dict(built.domains)["checkpoint_ratio"] == (0.0, 0.25, 0.5, 0.75, 1.0, 0.3)
    assert (nearest.zero_stage, nearest.micro_batch) == (0, 2)
    with pytest.raises(ValueError, match="zero_stage is 7, must be one of 0, 1, 2, 3; x is not"):
        a_spec(baseline={"zero_stage": 7, "x": 1})


def test_a_global_batch_that_no_plan_can_meet_names_the_nearest() -> None:
    spec = a_spec(train={"global_batch": 32}, space={"micro_batch": [5], "data": [2]})

    with pytest.raises(SpecError, match=r"train.global_batch is 32: .* that works is 30$"):
        build_space(around(spec=spec), 2)


def test_a_space_without_a_legal_plan_says_which_rules_forbid_it() -> None:
    spec = a_spec(space={"data": [4]})

    with pytest.raises(SpecError, match=r"cluster_has_room \(needs 4 ranks") as caught:
        build_space(around(spec=spec), 2)

    assert caught.value.faults[0].path == "space"


def test_energy_is_no_objective_where_nothing_counts_it() -> None:
    spec, cluster = a_spec(objective={"metric": "tokens_per_joule"}), a_cluster()
    lacking = a_cluster(lacks=(("energy", "it needs a counter"),))

    assert len(build_space(around(spec=spec, cluster=cluster), 2).table)
    with pytest.raises(SpecError, match=r"objective\.metric is tokens_per_joule: it needs a count"):
        build_space(around(spec=spec, cluster=lacking), 2)


def test_too_many_combinations_are_refused_before_they_are_made() -> None:
    many = list(range(1, 1001))
    spec = a_spec(space={"micro_batch": many, "data": many})

    with pytest.raises(SpecError, match=r"is [\d,]+ combinations or more: at most 5,000,000 can"):
        build_space(around(spec=spec), 2)


@pytest.mark.timeout(300)  # to count to it takes longer, all that is needed milliseconds
def test_a_huge_global_batch_has_few_micro_batches() -> None:
    spec = a_spec(train={"global_batch": 1_000_000_000})

    built = build_space(around(spec=spec), 2)

    assert len(dict(built.domains)["micro_batch"]) < 100
    assert built.baseline.global_batch == 1_000_000_000


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_baseline_trains_in_the_precision_that_was_asked_for(precision: str) -> None:
    """The gain of another precision is not a speed-up of the same training."""
    train = {"global_batch": 32, "precision": precision}
    spec = a_spec(train=train, space={"precision": ["bf16", "fp32"]})

    assert build_space(around(spec=spec), 2).baseline.precision == precision


def test_more_workers_than_there_is_room_for() -> None:
    spec = a_spec(cluster={"workers": 32})

    with pytest.raises(SpecError, match=r"cluster.workers is 32: the cluster has room for 2 ranks"):
        build_space(around(spec=spec), 32)
