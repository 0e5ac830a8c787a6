"""Few plans in which every value of every knob has its share."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.gpu.cases import CASES, LLAMA_1B, TINY_CASES, searched
from benchmarks.gpu.choosing import balanced, space_of
from benchmarks.gpu.command import Asked
from benchmarks.gpu.surfaces import FOLDER, LEAST_PLANS, order_of
from benchmarks.gpu.sweep import cases as sweep_cases
from benchmarks.gpu.sweep import spec_of as sweep_spec
from search_spaces.facts import ClusterFacts
from search_spaces.spec.load import load_spec

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
def test_the_models_are_those_of_the_validation_and_tiny_ones_are_small(case: object) -> None:
    from benchmarks.gpu.cases import Case
    from workers.models.load import describe

    assert isinstance(case, Case)
    large, small = (case.spec(tiny=tiny) for tiny in (False, True))
    parameters = describe(large.model, large.train).parameters
    billions = {"gpt2-xl": 1.56, "llama-3.2-1b": 1.24, "llama-3.2-3b": 3.21, "bert-large": 0.34}

    assert parameters / 1e9 == pytest.approx(billions[case.name], rel=0.02)
    assert describe(small.model, small.train).parameters < 1_000_000
    assert large.cluster.device == "cuda"
    assert small.cluster.device == "cpu"
    assert {one.name for one in TINY_CASES} < {one.name for one in CASES}


def test_the_sweeps_are_of_all_models_at_two_lengths(asked: Asked) -> None:
    wanted = sweep_cases(replace(asked, tiny=False))

    assert len(wanted) == 2 * len(CASES)
    for case, length in wanted[-1:]:  # BERT, which has learned positions for 512 tokens
        spec = sweep_spec(case, length, tiny=False)
        assert spec.train.sequence_length == length
        assert spec.space == type(spec.space)()  # Plimsoll's own choice
        assert len(space_of(spec, GPU).candidates) > 20


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.yaml")), ids=lambda file: file.stem)
def test_grids_are_large_and_a_tenth_of_their_plans_is_repeated(file: object) -> None:
    from pathlib import Path

    assert isinstance(file, Path)
    plans = tuple(space_of(load_spec(file), GPU).candidates)
    order = order_of(plans, "cuda")
    counts = Counter(turn.plan for turn in order)

    assert len(plans) >= LEAST_PLANS
    assert set(counts) == set(plans)
    assert Counter(counts.values()) == {1: len(plans) * 9 // 10, 3: len(plans) // 10}
    assert {turn.repeat for turn in order[: len(plans)]} == {1}
    assert np.ptp([turn.repeat for turn in order]) == 2
