"""The models that are trained, as they are or tiny for a CPU, and the plans of each to measure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from search_spaces.facts import ClusterFacts
from search_spaces.plan import Plan
from search_spaces.plan_table import KNOB_NAMES, PlanTable
from search_spaces.rules.base import RuleContext
from search_spaces.space import Space, build_space
from search_spaces.spec.schema import SweepSpec
from workers.prepare import prepare

TINY_GIB = 0.075  # of a rank: room for the tiny models, and not for their largest micro-batch
TINY_TOKENS = 64
_GLOBAL_BATCH = 16
_MICRO_BATCHES = (1, 2, 4, 8, 16)
_SEARCHED: Mapping[str, Any] = {  # every knob that one GPU has, but the allocator's settings
    "engine": ["torch", "deepspeed"],
    "zero_stage": [0, 2, 3],
    "micro_batch": list(_MICRO_BATCHES),
    "checkpoint_ratio": [0.0, 0.5, 1.0],
    "checkpoint_mode": ["full", "selective"],
    "checkpoint_offload": [False, True],
    "offload_optimizer": ["none", "cpu"],
    "offload_parameters": ["none", "cpu"],
    "pin_memory": [False, True],
    "attention": ["sdpa", "eager", "flash_attention_2"],
    "precision": ["bf16", "fp16", "fp32"],
    "compile": [False, True],
    "compile_mode": ["default", "max-autotune-no-cudagraphs"],
    "optimizer": ["adamw_fused", "adamw_foreach", "adamw_8bit", "adafactor"],
}
_TINY_SEARCHED: Mapping[str, Any] = {
    "engine": ["torch"],
    "micro_batch": [1, 2, 4, 16],
    "checkpoint_ratio": [0.0, 1.0],
    "attention": ["sdpa", "eager"],
    "optimizer": ["adamw_fused", "adamw_foreach"],
}
_LLAMA_TINY = {
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 8192,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model at a sequence length in tokens; `positions` is the config's key for the longest."""

    name: str
    sequence_length: int
    positions: str | None = None
    tiny: tuple[tuple[str, Any], ...] = ()

    def spec(
        self,
        *,
        tiny: bool,
        space: Mapping[str, Any] | None = None,
        **sections: Mapping[str, Any],
    ) -> SweepSpec:
        """The specification of this case.

        Args:
            tiny: Whether the model is cut down, and trained on a CPU.
            space: What is searched; Plimsoll's own choice if None.
            sections: Others of the specification, such as objective or budget.
        """
        length = TINY_TOKENS if tiny else self.sequence_length
        config: dict[str, Any] = dict(self.tiny) if tiny else {}
        if self.positions is not None:
            config[self.positions] = length
        cluster = {"device": "cpu", "memory_gib": TINY_GIB} if tiny else {"device": "cuda"}
        return SweepSpec.model_validate(
            {
                "model": {"name": self.name, "config": config},
                "cluster": {**cluster, "workers": 1},
                "train": {
                    "global_batch": _GLOBAL_BATCH,
                    "sequence_length": length,
                    "precision": "fp32" if tiny else "bf16",
                },
                "space": dict(space or {}),
                **sections,
            }
        )


def searched(*, tiny: bool) -> Mapping[str, Any]:
    """The values of all knobs that one GPU has."""
    return _TINY_SEARCHED if tiny else _SEARCHED


GPT2_XL = Case(
    name="gpt2-xl",
    sequence_length=1024,
    positions="n_positions",
    tiny=(("n_embd", 64), ("n_head", 4), ("n_layer", 2), ("vocab_size", 8192)),
)
LLAMA_1B = Case(
    name="llama-3.2-1b",
    sequence_length=2048,
    tiny=tuple(_LLAMA_TINY.items()),
)
LLAMA_3B = Case(
    name="llama-3.2-3b",
    sequence_length=2048,
    tiny=tuple((_LLAMA_TINY | {"num_hidden_layers": 3}).items()),
)
CASES = (GPT2_XL, LLAMA_1B, LLAMA_3B)
MEASURED = (GPT2_XL, LLAMA_1B)  # in half an hour; all are judged


_JITTER = 1e-3  # decides between plans that are as good
_FOLLOWS = "accumulation"  # from the other knobs


def space_of(spec: SweepSpec, here: ClusterFacts) -> Space:
    """The legal plans of one rank on this machine."""
    around = RuleContext(spec=spec, model=prepare(spec), cluster=here)
    return build_space(around, 1)


def balanced(table: PlanTable, count: int, seed: int) -> tuple[Plan, ...]:
    """Chooses `count` plans, each next one that whose knobs have the values seen least.

    The first plans of a longer choice are those of a shorter one, so that a table can grow.
    """
    rng = np.random.default_rng(seed)
    free = np.ones(len(table), dtype=bool)
    names = [name for name in KNOB_NAMES if len(table.values[name]) > 1 and name != _FOLLOWS]
    seen = {name: np.zeros(len(table.values[name])) for name in names}
    jitter = _JITTER * rng.random(len(table))
    chosen: list[int] = []
    while len(chosen) < min(count, len(table)):
        worth = jitter.copy()
        for name in names:
            worth += 1 / (1 + seen[name][table.codes[name]])
        row = int(np.argmax(np.where(free, worth, -np.inf)))
        free[row] = False
        for name in names:
            seen[name][table.codes[name][row]] += 1
        chosen.append(row)
    return tuple(table.plan(row) for row in chosen)
