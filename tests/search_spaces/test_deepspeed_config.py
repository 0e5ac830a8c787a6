"""`render_deepspeed`: what each knob sets, and that no buffer is larger than the model."""

from __future__ import annotations

from typing import Any

import pytest

from search_spaces.deepspeed_config import DeepSpeedSettings
from search_spaces.render import render_deepspeed
from tests.search_spaces.values import a_model, a_plan, a_spec

MODEL = a_model(
    parameters=10_000_000,
    blocks=4,
    block_parameters=(2_000_000,) * 4,
    embedding_parameters=1_000_000,
    head_parameters=1_000_000,
)


def rendered(spec: Any = None, device: str = "cuda", **knobs: Any) -> DeepSpeedSettings:
    plan = a_plan(**{"engine": "deepspeed", "zero_stage": 2} | knobs)
    return render_deepspeed(plan, MODEL, spec or a_spec(), device)


def test_the_batch_is_the_plans() -> None:
    config = rendered(micro_batch=4, accumulation=4, data=2).config

    assert config["train_batch_size"] == 32
    assert config["train_micro_batch_size_per_gpu"] == 4
    assert config["gradient_accumulation_steps"] == 4


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_buckets_and_prefetching_are_never_larger_than_the_model(stage: int) -> None:
    zero = rendered(zero_stage=stage, bucket_mib=4096, prefetch_mib=4096).config[
        "zero_optimization"
    ]

    sizes = [value for name, value in zero.items() if "size" in name]
    assert zero["stage"] == stage
    assert len(sizes) == (0, 2, 2, 4)[stage]
    assert all(size <= MODEL.parameters for size in sizes)


@pytest.mark.parametrize(("precision", "elements"), [("fp32", 2**18), ("bf16", 2**19)])
def test_a_bucket_holds_so_many_bytes(precision: str, elements: int) -> None:
    zero = rendered(bucket_mib=1, precision=precision).config["zero_optimization"]

    assert zero["reduce_bucket_size"] == elements


def test_stage_3_gathers_a_block_and_what_is_fetched_ahead() -> None:
    zero = rendered(zero_stage=3, prefetch_mib=1).config["zero_optimization"]

    assert zero["stage3_max_live_parameters"] == 2_000_000 + 2**18
    assert zero["stage3_max_reuse_distance"] == zero["stage3_max_live_parameters"]
    assert zero["stage3_param_persistence_threshold"] == 10_000


@pytest.mark.parametrize(
    ("precision", "section"), [("fp32", None), ("bf16", "bf16"), ("fp16", "fp16")]
)
def test_precision(precision: str, section: str | None) -> None:
    config = rendered(precision=precision).config

    assert [name for name in ("bf16", "fp16") if name in config] == ([section] if section else [])
    if section:
        assert config[section]["enabled"] is True


@pytest.mark.parametrize(("device", "pinned"), [("cuda", True), ("cpu", False)])
def test_offload_to_the_host_is_pinned_only_for_a_gpu(device: str, pinned: bool) -> None:
    settings = rendered(device=device, offload_optimizer="cpu", pin_memory=True)

    offload = settings.config["zero_optimization"]["offload_optimizer"]
    assert offload == {"device": "cpu", "pin_memory": pinned}
    assert settings.host_optimizer
    assert not rendered().host_optimizer


def test_offload_to_nvme_needs_a_folder_and_has_its_requests_set() -> None:
    knobs = {"zero_stage": 3, "offload_optimizer": "nvme", "offload_parameters": "nvme"}
    spec = a_spec(cluster={"nvme_folder": "/drive"})

    config = rendered(spec, aio_block_kib=512, aio_queue_depth=32, aio_threads=2, **knobs).config

    offload = config["zero_optimization"]["offload_param"]
    assert offload["nvme_path"] == "/drive"
    assert offload["buffer_size"] >= 2_000_000 / 2
    assert config["aio"]["block_size"] == 512 * 1024
    assert (config["aio"]["queue_depth"], config["aio"]["intra_op_parallelism"]) == (32, 2)
    assert "aio" not in rendered().config
    with pytest.raises(ValueError, match=r"cluster\.nvme_folder"):
        rendered(**knobs)


def test_clipping_is_the_specs() -> None:
    train = {"global_batch": 32, "precision": "fp32", "grad_clip": 0.5}

    assert rendered(a_spec(train=train)).config["gradient_clipping"] == 0.5
    assert rendered().config["gradient_clipping"] == 0.0


def test_each_call_gives_a_configuration_of_its_own() -> None:
    settings = rendered()
    settings.config["zero_optimization"]["stage"] = 3

    assert settings.config["zero_optimization"]["stage"] == 2
