"""The models that are trained, as they are or tiny for a CPU, and the plans of each to measure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.space import space_of, varying
from orchestrator.host import system_facts
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable
from search_spaces.specification.schema import SweepSpec

TINY_GIB = 0.075  # of a rank: room for the tiny models, and not for their largest micro-batch
TINY_TOKENS = 64
Work = tuple[SweepSpec, Plan]
_GLOBAL_BATCH = 16
_LONGEST_SECONDS = 90.0  # of a trial that is begun; a longer one ends by its deadline
# three windows of a second: a half-width below a few percent takes more than there is time for
_OBJECTIVE = {"min_steps": 6, "max_steps": 60, "max_seconds": 3.0, "interval": 0.01}
_TINY_OBJECTIVE = {"min_steps": 6, "max_steps": 6, "max_seconds": 0.3, "interval": 0.1}
_SEARCHED: Mapping[str, Any] = {  # every knob that one GPU has, but the allocator's settings
    "engine": ["torch", "deepspeed"],
    "zero_stage": [0, 2, 3],
    "micro_batch": [1, 2, 4, 8, 16],
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
_LLAMA_TINY = (
    *(("hidden_size", 64), ("intermediate_size", 192), ("num_hidden_layers", 2), ("head_dim", 16)),
    *(("num_attention_heads", 4), ("num_key_value_heads", 2), ("vocab_size", 8192)),
)


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
        memory_gib: float = TINY_GIB,
        **sections: Mapping[str, Any],
    ) -> SweepSpec:
        """The specification of this case; a trial is as short as a GPU allows, in whole windows.

        Args:
            tiny: Whether the model is cut down, and trained on a CPU.
            space: What is searched; every knob of one GPU if None.
            memory_gib: The memory of a tiny run's rank; of a GPU, there is no limit.
            sections: Others of the specification, such as objective or budget.
        """
        length = TINY_TOKENS if tiny else self.sequence_length
        changed: dict[str, Any] = dict(self.tiny) if tiny else {}
        if self.positions is not None:
            changed[self.positions] = length
        cluster = {"device": "cpu", "memory_gib": memory_gib} if tiny else {"device": "cuda"}
        usual: Mapping[str, Any] = {
            "objective": _TINY_OBJECTIVE if tiny else _OBJECTIVE,
            "budget": {"trial_seconds": _LONGEST_SECONDS},
        }
        return SweepSpec.model_validate(
            {
                "model": {"name": self.name, "config": changed},
                "cluster": {**cluster, "workers": 1},
                "train": {
                    "global_batch": _GLOBAL_BATCH,
                    "sequence_length": length,
                    "precision": "fp32" if tiny else "bf16",
                },
                "space": searched(tiny=tiny) if space is None else space,
                **usual,
                **sections,
            }
        )

    def one_plan(self, knobs: Mapping[str, Any], *, tiny: bool, **sections: Any) -> Work:
        """The plan with these knobs, and plain torch's choice for all others."""
        usual = {"engine": "torch", "attention": "sdpa", "optimizer": "adamw_fused"}
        chosen = usual | {"compile": False, "checkpoint_ratio": 0.0} | dict(knobs)
        space = {name: [value] for name, value in chosen.items()}
        spec = self.spec(tiny=tiny, space=space, **{"memory_gib": 2.0} | sections)
        return spec, space_of(spec).table.plan(0)


def searched(*, tiny: bool) -> Mapping[str, Any]:
    """The values of all knobs that one GPU has."""
    return _TINY_SEARCHED if tiny else _SEARCHED


GPT2_XL = Case(
    name="gpt2-xl",
    sequence_length=1024,
    positions="n_positions",
    tiny=(("n_embd", 64), ("n_head", 4), ("n_layer", 2), ("vocab_size", 8192)),
)
LLAMA_1B = Case(name="llama-3.2-1b", sequence_length=2048, tiny=_LLAMA_TINY)
LLAMA_3B = Case(
    name="llama-3.2-3b", sequence_length=2048, tiny=(*_LLAMA_TINY, ("num_hidden_layers", 3))
)
CASES = (GPT2_XL, LLAMA_1B, LLAMA_3B)
BASELINE = {"micro_batch": 1}
_LARGE_GIB = 120.0  # what the winner below wants


def winner(*, tiny: bool) -> dict[str, Any]:
    """The knobs of the fastest plan of Llama-3.2 1B on this machine's GPU."""
    gpus = [] if tiny else system_facts()["gpus"]
    is_large = any((gpu["memory_gib"] or 0) > _LARGE_GIB for gpu in gpus)
    return {"micro_batch": 2 if tiny else 16 if is_large else 8, "compile": True}


def reference(*, tiny: bool) -> dict[str, Any]:
    """The knobs of a plan of Llama-3.2 1B that the device limits, and that leaves room."""
    return {"micro_batch": 2 if tiny else 8, "compile": not tiny}


_JITTER = 1e-3  # decides between plans that are as good


def balanced(table: PlanTable, count: int, seed: int) -> tuple[Plan, ...]:
    """Chooses `count` plans, each next one that whose knobs have the values seen least.

    The first plans of a longer choice are those of a shorter one, so that a table can grow.
    """
    rng = np.random.default_rng(seed)
    free = np.ones(len(table), dtype=bool)
    names = varying(table)
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
