"""TPUs: numbers of the catalogue, padding of matmuls, and plans that are not for them."""

from typing import Any

import numpy as np
import pytest

from search_spaces.costs.columns import PADDED, Kernels, padded_to_units
from search_spaces.facts import ExpertFacts, TensorFacts, known_lacks
from search_spaces.hardware.catalogue import known_device
from search_spaces.rules.registry import refusal
from search_spaces.space import build_space
from search_spaces.specification.schema import GIB
from tests.plans import ddp_plan
from tests.search_spaces.costs.values import a_plan, work
from tests.search_spaces.values import a_cluster, a_model, a_spec, around

# GiB and TFLOP/s in bf16 of a chip, and its devices: torch_tpu/_internal/utils/hardware.py (0.2.0);
# GB/s of its links in both directions: Google's documentation of TPU7x, v6e and v5p, twice that of
# v5e and v4 in one
CHIPS = {
    "TPU v4": (32, 275, 1, 600),
    "TPU v5e": (16, 197, 1, 400),
    "TPU v5p": (95, 459, 1, 1200),
    "TPU v6e": (32, 918, 1, 800),
    "TPU v7": (192, 2307, 2, 1200),
}


@pytest.mark.parametrize("name", CHIPS)
def test_a_device_is_what_torch_tpu_sees_of_a_chip(name: str) -> None:
    device = known_device(name)
    gib, tera, devices, both_ways = CHIPS[name]

    assert device.kind == "tpu"
    assert device.memory_bytes == gib * GIB // devices
    assert device.bf16_flops_per_second == tera * 1e12 / devices
    assert device.link_bytes_per_second == both_ways * 1e9 / 2 / devices
    assert device.network_bytes_per_second == device.link_bytes_per_second  # ICI links hosts too
    assert device.node_devices == (8 if name in ("TPU v5e", "TPU v6e") or devices == 2 else 4)


def a_kernel(rows: float, columns: float, inner: float) -> Kernels:
    own = {"rows": rows, "columns": columns, "inner": inner, "flops": 2 * rows * columns * inner}
    others = dict.fromkeys(("batch", "element_bytes", "calls"), 1.0)
    values = own | others | {"is_attention": 0.0, "measured_flops": np.nan}
    arrays = {key: np.array([value]) for key, value in values.items()}
    return Kernels(slot=np.zeros(1, dtype=np.int64), **arrays)


@pytest.mark.parametrize(
    ("sizes", "padded"),
    [
        ((128, 256, 384), (128, 256, 384)),
        ((1, 129, 64), (128, 256, 128)),
        ((1000, 50_257, 96), (1024, 50_304, 128)),
    ],
)
def test_zeros_fill_what_a_unit_takes_at_a_time(
    sizes: tuple[int, int, int], padded: tuple[int, int, int]
) -> None:
    kernel = padded_to_units(a_kernel(*sizes), PADDED)

    assert (kernel.rows[0], kernel.columns[0], kernel.inner[0]) == padded
    assert kernel.flops[0] == pytest.approx(2 * np.prod(np.array(padded, dtype=float)))


def test_only_forecasts_of_tpus_are_padded() -> None:
    """The traced part is a product of 1,024 to the third: two tensor ranks have 512 columns."""
    plan = a_plan(tensor=16, data=1)
    tpu, gpu = (work(plan, device=known_device(name)).kernels for name in ("TPU v5p", "H100"))

    assert set(gpu.columns) == {64.0}
    assert set(tpu.columns) == {128.0}
    assert set(tpu.flops / gpu.flops) == {2.0}


ON_TPU = a_cluster(device="tpu", slots=8)


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"engine": "deepspeed", "zero_stage": 2}, "engine must be torch"),
        ({"optimizer": "adamw_8bit"}, "bitsandbytes has no kernels for TPUs"),
        ({"loss": "fused"}, "loss must be whole, chunked or compiled"),
        ({"precision": "fp16"}, "precision must be bf16 or fp32"),
        ({"attention": "flash_attention_2", "precision": "bf16"}, "attention sdpa has a kernel"),
        ({"loader_pin_memory": True}, "loader_pin_memory must be false"),
        ({"allocator": "expandable_segments"}, "is for cuda, but the ranks run on tpu"),
        (
            {"zero_stage": 2, "offload_optimizer": "cpu", "offload_parameters": "cpu"},
            "must be none",
        ),
        ({"checkpoint_ratio": 1.0, "checkpoint_offload": True}, "checkpoint_offload false"),
        ({"compile": True, "compile_mode": "max-autotune-no-cudagraphs"}, "must be default"),
        ({"precision": "bf16", "states": "bf16_stochastic"}, "states must be fp32 or bf16"),
        ({"experts": 2, "zero_stage": 2}, "experts must be 1"),
    ],
)
def test_what_a_tpu_lacks_is_refused_with_the_way_on(knobs: dict[str, Any], words: str) -> None:
    attentions = ("sdpa", "eager", "flash_attention_2")
    experts = ExpertFacts(count=4, layers=12, per_token=2, parameters=10**7, kernels=True)
    model = a_model(attentions=attentions, experts=experts)
    refused = refusal(ddp_plan(**knobs), around(model=model, cluster=ON_TPU))

    assert refused is not None
    assert words in refused.detail


def test_a_plain_plan_is_for_a_tpu() -> None:
    for knobs in ({}, {"precision": "bf16", "zero_stage": 3}, {"compile": True}):
        assert refusal(ddp_plan(**knobs), around(cluster=ON_TPU)) is None


def test_a_search_on_tpus_proposes_nothing_that_only_a_gpu_has() -> None:
    """A model that on GPUs of 16 GiB is searched with offload and DeepSpeed."""
    facts = {"parameters": 8_000_000_000, "blocks": 32}
    model = a_model(**facts, tensor=TensorFacts(divisors=(("attention heads", 32),)))
    train = {"global_batch": 128, "precision": "bf16"}
    for workers in (1, 8):
        found = {}
        for device in ("cuda", "tpu"):
            cluster = a_cluster(slots=workers, device=device, memory_limit_bytes=16 * GIB)
            context = around(spec=a_spec(train=train), model=model, cluster=cluster)
            found[device] = dict(build_space(context, workers).domains)
        plain = {"engine": ("torch",), "offload_optimizer": ("none",), "allocator": ("default",)}

        assert "cpu" in found["cuda"]["offload_optimizer"]
        assert plain.items() <= found["tpu"].items()
        assert found["tpu"]["compile"] == (False, True)
        assert found["tpu"]["tensor"] == found["cuda"]["tensor"]


def test_features_that_the_rules_ask_for_are_in_the_list() -> None:
    assert known_lacks("cuda") == known_lacks("cpu") == {}
    assert (
        a_cluster(device="tpu", lacks=(("offload", "another reason"),)).lack("offload")
        == (known_lacks("tpu")["offload"])
    )
