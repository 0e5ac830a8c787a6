"""The answer of `plimsoll plan` as one value, which is printed, drawn and kept as JSON."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import TypeAdapter

from orchestrator.planning.expected import Expected
from orchestrator.planning.memory_sizes import MemorySize
from orchestrator.planning.nearest import Nearest
from orchestrator.planning.wasteful import Waste


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeAnswer:
    """What so many devices can do.

    Of `plans` legal ones, `fitting` are recommended, `unhosted` offload more than the host has
    room for and `hopeless` surely do not fit the device; the others are above the line or too near
    to the limit. `best` is empty where none is recommended, and
    `nearest` then says what is missing. `refusal` says why no plan is legal, None if some are.
    `price_per_billion_tokens` is that of the best plan, None where no price is known.
    """

    ranks: int
    plans: int
    fitting: int
    hopeless: int
    unhosted: int
    ruled_out: tuple[tuple[str, int], ...]
    best: tuple[Expected, ...]
    nearest: Nearest | None
    refusal: str | None
    price_per_billion_tokens: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What is expected of a model on a kind of device.

    `answer` is that of the count that was asked for first, `sizes` those of all counts looked at,
    in their order. `front` holds plans that no other beats in speed with less memory, `cloud`
    (peak bytes, samples per second, P(fits)) of all plans or of a sample of them.
    `price_front` holds counts of devices that no other beats in speed for less money per token.
    `enough` names devices of which so many would do where nothing fits.
    """

    model: str
    parameters: int
    tokens: int  # of a sample
    global_batch: int
    device: str
    device_memory_bytes: int
    node_devices: int
    limit_bytes: int
    line_bytes: float
    price_per_hour: float | None
    answer: SizeAnswer
    sizes: tuple[SizeAnswer, ...]
    fewest_ranks: int | None
    front: tuple[Expected, ...]
    cloud: tuple[tuple[float, float, float], ...]
    price_front: tuple[int, ...]
    memory_sizes: tuple[MemorySize, ...]
    wasteful: tuple[Waste, ...]
    enough: tuple[str, ...]
    notes: tuple[str, ...]
    forecast_plans: int
    seconds: float
    provenance: str

    @property
    def best(self) -> Expected | None:
        """The plan that is recommended, None if nothing fits."""
        return self.answer.best[0] if self.answer.best else None


_PLANNED: TypeAdapter[Planned] = TypeAdapter(Planned)


def planned_to_json(planned: Planned) -> str:
    """As JSON, which `planned_from_json` reads back."""
    return _PLANNED.dump_json(planned, indent=1).decode() + "\n"


def planned_from_json(text: str) -> Planned:
    """What `planned_to_json` wrote."""
    return _PLANNED.validate_json(text)
