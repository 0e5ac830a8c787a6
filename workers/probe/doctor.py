"""What this machine can and cannot do, with the remedy: for `plimsoll doctor` and for the rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from search_spaces.spec.schema import GIB
from workers.engines.optimizers import eight_bit_lack
from workers.models.hub import flash_lack
from workers.parallel.compile import compile_lack
from workers.parallel.deepspeed_features import cpu_adam_lack, deepspeed_lack, fp16_lack, nvme_lack

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
    """Something that plans may need; `lack` says why it is missing, None if it is there."""

    name: str
    serves: str  # which knobs need it
    lack: str | None


def survey(device_type: str) -> tuple[Feature, ...]:
    """Looks at what is installed for "cpu" or "cuda"; builds and starts nothing."""
    device = torch.device(device_type)
    return tuple(
        Feature(name=name, serves=serves, lack=look(device)) for name, serves, look in _FEATURES
    )


def cuda_devices() -> tuple[str, ...]:
    """The CUDA devices that torch sees, with their memory; none on a machine without."""
    found = (torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count()))
    return tuple(f"{device.name}, {device.total_memory / GIB:.0f} GiB" for device in found)


def lacks(device_type: str) -> tuple[tuple[str, str], ...]:
    """The features that are missing, each with the reason: `ClusterFacts.lacks`."""
    return tuple((found.name, found.lack) for found in survey(device_type) if found.lack)
