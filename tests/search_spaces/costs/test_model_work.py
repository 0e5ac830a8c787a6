"""Ceilings and utilization by hand, and of the run on an H200."""

from dataclasses import replace

import pytest

from search_spaces.costs.model_work import ModelWork, ceiling, utilization
from search_spaces.hardware.catalogue import known_device
from search_spaces.trial import Ceiling
from tests.search_spaces.costs.test_matmul_rates import H200
from tests.search_spaces.costs.values import FACTS

WIDE = (8192.0, 8192.0, 2048.0, 3e9)
DEEP = (8192.0, 2048.0, 8192.0, 1e9)
WORK = ModelWork(
    matmul_flops=12e9, attention_flops=1e9, full_attention_flops=2e9, layers=(WIDE, DEEP)
)


def test_a_probed_device_has_the_rate_of_the_models_own_matmuls() -> None:
    seconds = 3e9 / 6.731e14 + 1e9 / 7.256e14  # as measured, one after the other

    limit = ceiling(H200, "bf16", WORK)

    assert limit == Ceiling(flops_per_second=pytest.approx(4e9 / seconds), measured=True)  # type: ignore[arg-type]


def test_other_devices_have_the_peak_of_their_data_sheet() -> None:
    sheet = Ceiling(flops_per_second=989e12, measured=False)

    assert ceiling(known_device("H100"), "bf16", WORK) == sheet
    assert ceiling(H200, "bf16", replace(WORK, layers=())) == sheet
    assert ceiling(known_device("Tesla T4"), "bf16", WORK) is None


def test_utilization_is_of_the_ceiling_and_that_of_papers_of_the_data_sheet() -> None:
    used = utilization(WORK, FACTS, H200, "bf16", 40_000.0)

    assert used.ceiling is not None
    assert used.mfu == pytest.approx(13e9 * 40_000 / used.ceiling.flops_per_second)
    looked_up = FACTS.embedding_parameters
    paper = 6 * (FACTS.parameters - looked_up) + 2e9
    assert used.paper_mfu == pytest.approx(paper * 40_000 / 989e12)
    tied = replace(FACTS, parameters=FACTS.parameters - looked_up)  # the head's weights are used
    assert WORK.paper_flops_per_token(tied) == paper
    assert WORK.paper_flops_per_token(replace(FACTS, trainable=1)) is None
    assert utilization(None, FACTS, H200, "bf16", 1.0).mfu is None
