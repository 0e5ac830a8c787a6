"""A plan: every knob of one training run, as one frozen value."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, get_args, get_type_hints

from search_spaces.errors import PlanError

Engine = Literal["torch"]
ZeroStage = Literal[0, 2, 3]
Precision = Literal["fp32", "bf16"]
Attention = Literal["eager", "sdpa"]
Batching = Literal["padded", "grouped", "packed"]

_KEY_DIGITS = 12  # 48 bits: a collision among a million plans has a chance of 1 in 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One point of the search space; a `Plan` that exists obeys its own rules.

    What an engine, a model or a cluster refuses is `search_spaces.rules`.

    Raises:
        PlanError: On construction, naming every broken rule at once.
    """

    engine: Engine = "torch"
    zero_stage: ZeroStage  # torch: 0 DDP, 2 FSDP2 kept gathered until backward, 3 FSDP2
    micro_batch: int  # samples per rank and forward pass
    accumulation: int  # forward passes per optimizer step
    checkpoint_ratio: float  # share of blocks recomputed in backward, 0.0 to 1.0
    attention: Attention
    precision: Precision
    batching: Batching  # how the samples of a step are laid into micro-batches
    data: int  # data-parallel ranks

    def __post_init__(self) -> None:
        if problems := tuple(_broken_rules(self)):
            raise PlanError(problems)
        # one form for equal ratios (1 and 1.0, -0.0 and 0.0), so that equal plans have one key
        object.__setattr__(self, "checkpoint_ratio", float(self.checkpoint_ratio) + 0.0)

    @property
    def world_size(self) -> int:
        """Ranks that this plan needs."""
        return self.data

    @property
    def global_batch(self) -> int:
        """Samples per optimizer step: micro_batch x accumulation x data."""
        return self.micro_batch * self.accumulation * self.data

    @property
    def key(self) -> str:
        """Stable name of this plan: the hash of its canonical form."""
        canonical = json.dumps(self.as_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:_KEY_DIGITS]

    def as_dict(self) -> dict[str, Any]:
        """The knobs by name, as JSON has them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_dict(cls, knobs: Mapping[str, Any]) -> Self:
        """The plan with these knobs.

        Raises:
            PlanError: If a knob is missing, unknown or has a value that is not its own.
        """
        names = [field.name for field in fields(cls)]
        required = [name for name in names if name != "engine"]
        problems = [f"{name} is missing" for name in required if name not in knobs]
        problems += [
            f"{name} is no knob, the knobs are {', '.join(names)}"
            for name in knobs
            if name not in names
        ]
        if problems:
            raise PlanError(tuple(problems))
        return cls(**knobs)


def _broken_rules(plan: Plan) -> Iterator[str]:
    for name in ("micro_batch", "accumulation", "data"):
        count = getattr(plan, name)
        if type(count) is not int or count < 1:
            yield f"{name} is {count!r}, must be a whole number of 1 or more"
    ratio = plan.checkpoint_ratio
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 <= ratio <= 1:
        yield f"checkpoint_ratio is {ratio!r}, must lie in 0.0 to 1.0"
    for name, choices in CHOICES.items():
        value = getattr(plan, name)
        if type(value) not in map(type, choices) or value not in choices:
            yield f"{name} is {value!r}, must be one of {', '.join(map(str, choices))}"


def _choices() -> dict[str, tuple[Any, ...]]:
    hints = get_type_hints(Plan)
    return {name: get_args(hint) for name, hint in hints.items() if get_args(hint)}


CHOICES: Mapping[str, tuple[Any, ...]] = _choices()  # the knobs that are one of a few words
