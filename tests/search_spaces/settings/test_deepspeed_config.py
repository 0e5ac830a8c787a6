"""`render_deepspeed`: the setting of each knob, and that DeepSpeed itself reads all of them."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from search_spaces.plan import Plan
from search_spaces.rules.registry import refusal
from search_spaces.settings.deepspeed_config import DeepSpeedSettings, render_deepspeed
from search_spaces.specification.schema import SweepSpec
from tests.plans import ddp_plan
from tests.search_spaces.values import a_cluster, a_model, a_spec, around

MODEL = a_model(
    parameters=10_000_000,
    blocks=4,
    block_parameters=(2_000_000,) * 4,
    embedding_parameters=1_000_000,
    head_parameters=1_000_000,
)


def rendered(spec: Any = None, device: str = "cuda", **knobs: Any) -> DeepSpeedSettings:
    plan = ddp_plan(**{"engine": "deepspeed", "zero_stage": 2} | knobs)
    return render_deepspeed(plan, MODEL, spec or a_spec(), device)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_buckets_and_prefetching_are_never_larger_than_the_model(stage: int) -> None:
    zero = rendered(zero_stage=stage, bucket_mib=4096, prefetch_mib=4096).config[
        "zero_optimization"
    ]

    sizes = [value for name, value in zero.items() if "size" in name]
    assert zero["stage"] == stage
    assert len(sizes) == (0, 2, 2, 4)[stage]
    assert all(size <= MODEL.parameters for size in sizes)


@pytest.mark.parametrize(("parameters", "bucket"), [(5_001, 5_002), (5_002, 5_002), (1, 2)])
def test_a_bucket_is_an_even_number_of_elements(parameters: int, bucket: int) -> None:
    """DeepSpeed asserts it, for aligned addresses in NCCL."""
    model = replace(MODEL, parameters=parameters)
    plan = ddp_plan(engine="deepspeed", zero_stage=2)
    zero = render_deepspeed(plan, model, a_spec(), "cuda").config["zero_optimization"]

    assert (zero["reduce_bucket_size"], zero["allgather_bucket_size"]) == (bucket, bucket)


@pytest.mark.parametrize(("precision", "elements"), [("fp32", 2**18), ("bf16", 2**19)])
def test_a_bucket_holds_so_many_bytes(precision: str, elements: int) -> None:
    zero = rendered(bucket_mib=1, precision=precision).config["zero_optimization"]

    assert zero["reduce_bucket_size"] == elements


def test_stage_3_gathers_a_block_and_what_is_fetched_ahead() -> None:
    zero = rendered(zero_stage=3, prefetch_mib=1).config["zero_optimization"]

    assert zero["stage3_max_live_parameters"] == 2_000_000 + 2**18
    assert zero["stage3_max_reuse_distance"] == zero["stage3_max_live_parameters"]
    assert zero["stage3_param_persistence_threshold"] == 10_000


@pytest.mark.parametrize(("device", "pinned"), [("cuda", True), ("cpu", False)])
def test_offload_to_the_host_is_pinned_only_for_a_gpu(device: str, pinned: bool) -> None:
    settings = rendered(device=device, offload_optimizer="cpu", pin_memory=True)

    offload = settings.config["zero_optimization"]["offload_optimizer"]
    assert offload == {"device": "cpu", "pin_memory": pinned}
    assert settings.host_optimizer
    assert not rendered().host_optimizer


def test_offload_to_nvme_has_its_folder() -> None:
    knobs = {"zero_stage": 3, "offload_optimizer": "nvme", "offload_parameters": "nvme"}
    spec = a_spec(cluster={"nvme_folder": "/drive"})

    config = rendered(spec, **knobs).config

    offload = config["zero_optimization"]["offload_param"]
    assert offload["nvme_path"] == "/drive"
    assert offload["buffer_size"] >= 2_000_000 / 2


# ---------------------------------------------------------------- DeepSpeed's own reading

Legal = tuple[tuple[Plan, SweepSpec], ...]


class Watched(dict[str, Any]):
    """A section of a configuration that records the keys that DeepSpeed reads."""

    def __init__(self, section: dict[str, Any]) -> None:
        super().__init__(section)
        self.asked = set[str]()

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def __copy__(self) -> Watched:
        return self  # DeepSpeed reads a copy


def read_by_deepspeed(config: dict[str, Any]) -> None:
    """Lets DeepSpeed read a configuration as at the start of training.

    Most sections are pydantic models that refuse unknown keys, but of the top level and of the
    section `timers` it takes what it knows and passes over the rest.

    Raises:
        ValueError: If it refuses a value or key, or passes over a key.
    """
    deepspeed_config = pytest.importorskip("deepspeed.runtime.config")

    # without ranks it reckons with one
    alone = config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"]
    open_sections = {name: Watched(config[name]) for name in ("timers",) if name in config}
    top = Watched(config | {"train_batch_size": alone} | open_sections)
    deepspeed_config.DeepSpeedConfig(top)
    if unread := [
        key for each in (top, *open_sections.values()) for key in each.keys() - each.asked
    ]:
        raise ValueError(f"DeepSpeed does not read {', '.join(unread)}")


def plans() -> Iterator[tuple[Plan, SweepSpec]]:
    """Legal plans that cover every key of a configuration."""
    offloads = [
        ("none", "none"),
        ("cpu", "none"),
        ("cpu", "cpu"),
        ("nvme", "cpu"),
        ("nvme", "nvme"),
    ]
    for precision, clip in (("fp32", None), ("bf16", 1.0), ("fp16", 1.0)):
        train = {"global_batch": 32, "precision": precision, "grad_clip": clip}
        spec = a_spec(
            train=train, data={"lengths": {128: 1.0, 512: 2.0}}, cluster={"nvme_folder": "/drive"}
        )
        context = around(spec, MODEL, a_cluster(device="cuda", slots=4))
        spread = itertools.product((0, 1, 2, 3), offloads, (1, 2), (True, False))
        for stage, (optimizer, parameters), data, switch in spread:
            plan = ddp_plan(
                engine="deepspeed",
                precision=precision,
                zero_stage=stage,
                offload_optimizer=optimizer,
                offload_parameters=parameters,
                pin_memory=switch and optimizer != "none",
                overlap=switch,
                contiguous_gradients=switch,
                bucket_mib=25 if switch else 4096,
                data=data,
                accumulation=8 // data,
            )
            if refusal(plan, context) is None:
                yield plan, spec


@pytest.fixture(scope="module")
def legal() -> Legal:
    return tuple(plans())


def test_the_plans_say_all_that_a_configuration_can(legal: Legal) -> None:
    def values(name: str) -> set[Any]:
        return {getattr(plan, name) for plan, _ in legal}

    assert values("zero_stage") == {0, 1, 2, 3}
    assert values("precision") == {"fp32", "bf16", "fp16"}
    assert values("offload_optimizer") == values("offload_parameters") == {"none", "cpu", "nvme"}
    assert values("data") == {1, 2}


def test_deepspeed_reads_every_key_of_every_legal_plan(legal: Legal) -> None:
    for plan, spec in legal:
        config = render_deepspeed(plan, MODEL, spec, "cuda").config
        assert config["train_batch_size"] == plan.global_batch
        read_by_deepspeed(config)


def test_no_misspelt_key_would_pass(legal: Legal) -> None:
    """Doubles the last letter of each key of the largest configuration, one at a time."""
    configs = [render_deepspeed(plan, MODEL, spec, "cuda").config for plan, spec in legal]
    richest = {path: config for config in configs for path in paths(config)}
    needed = {"train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}

    assert len(richest) > 35
    for path, config in richest.items():
        if set(path) & needed:
            continue  # what the test itself reads
        with pytest.raises(ValueError, match=path[-1]):
            read_by_deepspeed(misspelt(config, path))


def paths(section: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in section.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from paths(value, (*above, key))


def misspelt(config: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    copied = copy.deepcopy(config)
    section = copied
    for key in path[:-1]:
        section = section[key]
    section[path[-1] + path[-1][-1]] = section.pop(path[-1])
    return copied
