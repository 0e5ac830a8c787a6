"""Which attention implementations a model of transformers can use here."""

from __future__ import annotations

from typing import Any, Literal

import torch
from transformers.utils.import_utils import (
    is_flash_attn_2_available,
    is_flash_attn_3_available,
)

from search_spaces.plan import Attention

_MISSING = {
    2: "flash-attn is not installed; `pip install flash-attn --no-build-isolation` brings it",
    # no index has it
    3: "flash-attn-3 is not installed; `python setup.py install` in the folder hopper of"
    " https://github.com/Dao-AILab/flash-attention brings it",
}


def attentions_of(module: Any) -> tuple[Attention, ...]:
    """What the architecture implements and this machine has installed, the usual one first."""
    offered: list[Attention] = ["sdpa"] if module._supports_sdpa else []
    offered.append("eager")
    if getattr(module, "_supports_flash_attn", False):
        # of an architecture that needs more of the kernel, as gpt-oss its sinks; None: all work
        working = getattr(module, "_compatible_flash_implementations", None)
        installed: dict[Attention, bool] = {
            "flash_attention_2": is_flash_attn_2_available(),
            "flash_attention_3": is_flash_attn_3_available(),
        }
        offered += [name for name, there in installed.items() if there]
        offered = [name for name in offered if name not in installed or name in (working or [name])]
    return tuple(offered)


def flash_lack(generation: Literal[2, 3], device: torch.device) -> str | None:
    """Why flash attention of that generation cannot be used, None if it can."""
    if device.type != "cuda":
        return f"flash_attention_{generation} needs a CUDA device"
    available = is_flash_attn_2_available if generation == 2 else is_flash_attn_3_available
    if available():
        return None
    return _MISSING[generation]
