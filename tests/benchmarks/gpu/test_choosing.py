"""Few plans in which every value of every knob has its share."""

from collections import Counter

import pytest

from benchmarks.gpu.cases import CASES, LLAMA_1B, Case, balanced, searched
from benchmarks.space import space_of
from search_spaces.facts import ClusterFacts

GPU = ClusterFacts(device="cuda", slots=1, memory_limit_bytes=None)


def test_every_value_of_every_knob_of_a_gpu_is_measured() -> None:
    asked = searched(tiny=False)
    table = space_of(LLAMA_1B.spec(tiny=False, space=asked), GPU).table

    plans = balanced(table, 28, 0)

    assert len(set(plans)) == 28
    for name, values in asked.items():
        counts = Counter(getattr(plan, name) for plan in plans)
        legal = {value for value in values if table.is_value(name, value).any()}
        assert set(counts) == legal, name
        assert min(counts.values()) >= 28 // len(values) // 3, (name, counts)


def test_a_longer_choice_begins_with_the_shorter_one() -> None:
    table = space_of(LLAMA_1B.spec(tiny=True, space=searched(tiny=True)), GPU).table

    assert balanced(table, 12, 3)[:5] == balanced(table, 5, 3)
    assert balanced(table, 12, 3) != balanced(table, 12, 4)
    assert len(balanced(table, 10_000, 0)) == len(table)


@pytest.mark.cases_by_default(1)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_models_are_those_of_the_validation_and_tiny_ones_are_small(case: Case) -> None:
    from workers.models.load import describe

    large, small = (case.spec(tiny=tiny) for tiny in (False, True))
    parameters = describe(large.model, large.train).parameters
    billions = {"gpt2-xl": 1.56, "llama-3.2-1b": 1.24, "llama-3.2-3b": 3.21}

    assert parameters / 1e9 == pytest.approx(billions[case.name], rel=0.02)
    assert describe(small.model, small.train).parameters < 1_000_000
    assert large.cluster.device == "cuda"
    assert small.cluster.device == "cpu"
