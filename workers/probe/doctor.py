"""Optional features of this machine, and remedies: for `plimsoll doctor` and for the rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from search_spaces.spec.schema import GIB
from workers.models.hub import flash_lack
from workers.parallel.compile import compile_lack
from workers.parallel.deepspeed_features import cpu_adam_lack, deepspeed_lack, fp16_lack, nvme_lack
from workers.parallel.optimizers import eight_bit_lack

_FEATURES: tuple[tuple[str, str, Callable[[torch.device], str | None]], ...] = (
    ("deepspeed", "engine deepspeed", lambda _: deepspeed_lack()),
    ("deepspeed_fp16", "engine deepspeed with precision fp16", fp16_lack),
    ("cpu_adam", "engine deepspeed with offload_optimizer", lambda _: cpu_adam_lack()),
    ("nvme", "offload to nvme", lambda _: nvme_lack()),
    ("compile", "compile", compile_lack),
    ("eight_bit", "optimizer adamw_8bit", lambda _: eight_bit_lack()),
    ("flash_attention_2", "attention flash_attention_2", lambda device: flash_lack(2, device)),
    ("flash_attention_3", "attention flash_attention_3", lambda device: flash_lack(3, device)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A feature that plans may need; `lack` is the reason why it is missing, None if present."""

    name: str
    serves: str  # which knobs need it
    lack: str | None


def survey(device_type: str) -> tuple[Feature, ...]:
    """Checks which features are installed for "cpu" or "cuda"; builds and starts nothing."""
    device = torch.device(device_type)
    return tuple(
        Feature(name=name, serves=serves, lack=lack_of(device))
        for name, serves, lack_of in _FEATURES
    )


def cuda_devices() -> tuple[str, ...]:
    """Returns name and memory of each CUDA device that torch sees."""
    devices = (torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count()))
    return tuple(f"{device.name}, {device.total_memory / GIB:.0f} GiB" for device in devices)


def lacks(device_type: str) -> tuple[tuple[str, str], ...]:
    """Returns the missing features, each with the reason, for `ClusterFacts.lacks`."""
    return tuple((feature.name, feature.lack) for feature in survey(device_type) if feature.lack)
