"""A recording with its specification beside it is forecast from its plans."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.published.baseline import ConstantMfu
from benchmarks.published.cells import Row
from benchmarks.search.recorded import _plans_of
from benchmarks.search.surfaces import surfaces_in
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable
from tests.benchmarks.search.toys import write_csv

SPEC = """
model:
  name: llama-3.2-1b
  config: {hidden_size: 64, intermediate_size: 128, num_hidden_layers: 2, num_attention_heads: 4,
           num_key_value_heads: 2, head_dim: 16, vocab_size: 256}
cluster: {device: cpu, workers: 1, memory_gib: 0.5}
train: {global_batch: 8, sequence_length: 32, precision: fp32}
space: {engine: [torch], micro_batch: [1, 2, 4, 8], checkpoint_ratio: [0.0, 1.0],
        checkpoint_mode: [full], attention: [sdpa], precision: [fp32], optimizer: [adamw_fused]}
"""


def rows() -> list[dict[str, Any]]:
    return [
        {"gpu": "cpu", "gpu_mem_gib": 0.5, "n_gpus": 1, "dp": 1, "micro_batch": micro}
        | {"grad_accum": 8 // micro, "checkpoint_ratio": ratio, "samples_per_s": 10 * micro}
        for micro in (1, 2, 4, 8)
        for ratio in ("0", "1")
    ]


def test_plans_are_forecast_as_the_product_does(tmp_path: Path) -> None:
    write_csv(tmp_path / "small.csv", [*rows(), rows()[0] | {"micro_batch": 3}])
    (tmp_path / "small.yaml").write_text(SPEC, "utf-8")
    (surface,) = surfaces_in(tmp_path, lambda _: ConstantMfu(), least=2)

    assert surface.told_by == "specification"
    assert surface.log_rate is not None
    assert surface.log_share is not None
    rate = np.exp(surface.log_rate[:8].reshape(4, 2))
    assert (rate[:, 0] > rate[:, 1]).all()  # recomputation takes time
    assert np.exp(surface.log_share).max() < 1
    assert surface.log_rate[8] == pytest.approx(surface.log_rate[:8].mean())  # is no plan of it


def test_a_specification_that_is_none_is_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_csv(tmp_path / "small.csv", rows())
    (tmp_path / "small.yaml").write_text("model: 3\n", "utf-8")
    (surface,) = surfaces_in(tmp_path, lambda _: ConstantMfu(), least=2)

    assert surface.told_by == "nothing"
    assert "small has no forecast: " in capsys.readouterr().err


def test_a_row_is_the_plan_with_its_knobs() -> None:
    plans = [
        Plan(
            data=2 // tensor,
            tensor=tensor,
            zero_stage=0,
            micro_batch=micro,
            accumulation=8 // micro * tensor // 2,
            batching="padded",
            checkpoint_ratio=0.5,
            attention="sdpa",
            precision="fp32",
            compile=compiled,
        )
        for tensor in (1, 2)
        for micro in (1, 2)
        for compiled in (False, True)
    ]
    table = PlanTable.of(plans)
    told = [
        Row({"tensor": str(plan.tensor), "micro_batch": f"{plan.micro_batch}.0", "compile": "True"})
        for plan in plans
    ]

    assert [plan and plan.micro_batch for plan in _plans_of(told, table)] == [1, 1, 2, 2] * 2
    assert all(plan is not None and plan.compile for plan in _plans_of(told, table))
    fewer = [Row({"tensor": "1"}), Row({"tensor": "4"})]  # says too little, and what is not offered
    assert _plans_of(fewer, table) == [None, None]
