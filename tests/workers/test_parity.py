"""Part of `make parity`: plans of some architectures, one of each kind, train as a plain loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.workers.parity.architectures import function_spec
from tests.workers.parity.comparison import Expected, Parity
from tests.workers.parity.layouts import COMMON

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def parity() -> Iterator[Parity]:
    made = Parity()
    yield made
    made.stop()


@pytest.mark.parametrize(
    ("task", "model"),
    [
        ("causal-lm", "gpt2"),  # projections of one packed weight
        ("causal-lm", "mixtral"),
        ("masked-lm", "esm"),  # weights without a gradient
        ("masked-lm", "funnel"),  # layers in lists of lists; refused but for single samples
        ("seq2seq", "t5"),
        ("sequence-classification", "llama"),
    ],
)
def test_a_plan_trains_as_the_plain_loop_or_is_refused(
    parity: Parity, task: str, model: str
) -> None:
    found = list(parity.of_model(task, model, COMMON))

    assert [each.layout for each in found] == list(COMMON)
    assert not [each for each in found if each.is_fault]
    assert any(each.ending == "same" for each in found)


@pytest.mark.parametrize("config", [{}, {"says_targets": True}], ids=["labels", "targets"])
def test_plans_of_a_function_weigh_its_micro_batches_by_their_labels(
    parity: Parity, config: dict[str, Any]
) -> None:
    expected = Expected(function_spec("make_answering", **config))

    found = list(parity.of_layouts("function", expected, COMMON))

    # its rows have several lengths, odd ones too, which these plans say in a sentence
    faults = {each.layout for each in found if each.is_fault}
    assert faults <= {"pipeline", "tensor, sequence"}
    assert sum(each.ending == "same" for each in found) > 7
