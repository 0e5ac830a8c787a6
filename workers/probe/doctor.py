"""Optional features of this machine, and remedies: for `plimsoll doctor` and for the rules."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import torch

from search_spaces.errors import missing_extra
from search_spaces.facts import NO_DEVICE, known_lacks
from search_spaces.hardware.properties import FIRST_WITH_FP8
from search_spaces.specification.schema import GIB
from workers.memory.device_runtime import missing_tpu
from workers.memory.nvml import missing_for_energy
from workers.models.hub import missing_for_flash
from workers.parallel.compile import missing_for_compile
from workers.parallel.deepspeed_features import (
    missing_for_cpu_adam,
    missing_for_deepspeed,
    missing_for_fp16,
    missing_for_nvme,
)


def _missing_for_fused_loss(device: torch.device) -> str | None:
    if device.type != "cuda":
        return "loss fused needs a CUDA device"
    installed = find_spec("liger_kernel") is not None
    return None if installed else "liger-kernel is not installed; run `pip install liger-kernel`"


def _missing_for_float8(device: torch.device) -> str | None:
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < FIRST_WITH_FP8:
        return "float8 needs an Ada, Hopper or newer GPU"
    return missing_extra("torchao")


_FEATURES: tuple[tuple[str, str, Callable[[torch.device], str | None]], ...] = (
    ("deepspeed", "engine deepspeed", lambda _: missing_for_deepspeed()),
    ("deepspeed_fp16", "engine deepspeed with precision fp16", missing_for_fp16),
    ("cpu_adam", "engine deepspeed with offload_optimizer", lambda _: missing_for_cpu_adam()),
    ("nvme", "offload to nvme", missing_for_nvme),
    ("compile", "compile", missing_for_compile),
    ("float8", "float8", _missing_for_float8),
    ("energy", "objective.metric tokens_per_joule", missing_for_energy),
    ("fused_loss", "loss fused", _missing_for_fused_loss),
    ("eight_bit", "adamw_8bit, int8 and nf4", lambda _: missing_extra("bitsandbytes")),
    (
        "stochastic",
        "states bf16_stochastic",
        lambda on: missing_extra("torchao") or missing_for_compile(on),
    ),
    ("flash_attention_2", "attention flash_attention_2", partial(missing_for_flash, 2)),
    ("flash_attention_3", "attention flash_attention_3", partial(missing_for_flash, 3)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A feature that plans may need; `lack` is the reason why it is missing, None if present."""

    name: str
    serves: str  # which knobs need it
    lack: str | None


def survey(device_type: str) -> tuple[Feature, ...]:
    """Checks which features are installed for a type of device; builds and starts nothing."""
    known = known_lacks(device_type)
    # torch knows no TPU where torch_tpu has not found one
    device = torch.device("cpu" if device_type == "tpu" else device_type)
    return tuple(
        Feature(name=name, serves=serves, lack=known.get(name) or lack_of(device))
        for name, serves, lack_of in _FEATURES
        if (device_type, name) != ("tpu", "compile")  # its compiler comes with it
    )


def cuda_devices() -> tuple[str, ...]:
    """Returns name and memory of each CUDA device that torch sees."""
    devices = (torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count()))
    return tuple(f"{device.name}, {device.total_memory / GIB:.0f} GiB" for device in devices)


def lacks(device_type: str) -> tuple[tuple[str, str], ...]:
    """Returns the missing features, each with the reason, for `ClusterFacts.lacks`."""
    found = tuple((feature.name, feature.lack) for feature in survey(device_type) if feature.lack)
    no_tpu = missing_tpu() if device_type == "tpu" else None
    return ((NO_DEVICE, no_tpu), *found) if no_tpu else found
