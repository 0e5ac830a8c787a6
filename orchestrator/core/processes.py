"""Which processes a plan needs: other ones than those that are there, or the same again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from orchestrator.core.placement import Placement
from search_spaces.plan import Plan
from search_spaces.render import Environment, render_environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """What is settled when a group of workers is started."""

    world_size: int
    environment: Environment
    placement: Placement | None = None  # None: wherever there is room

    @classmethod
    def of(cls, plan: Plan, device: str, placement: Placement | None = None) -> Self:
        """What the plan needs on a type of device."""
        return cls(
            world_size=plan.world_size,
            environment=render_environment(plan, device),
            placement=placement,
        )


def reason_to_change(needed: Processes, there: Processes, *, fresh: bool = False) -> str | None:
    """Why the workers that are there cannot run a plan, None if they can.

    They have run others, so that they are never fresh.
    """
    if needed.world_size != there.world_size:
        return f"the next plan needs {needed.world_size} ranks, there are {there.world_size}"
    if needed.environment != there.environment:
        return f"the next plan needs processes started with {_words(needed.environment)}"
    if needed.placement != there.placement:
        return "the next plan runs on other nodes"
    return "a proof runs in workers of its own" if fresh else None


def _words(environment: Environment) -> str:
    return " ".join(f"{name}={value}" for name, value in environment) or "no allocator settings"
