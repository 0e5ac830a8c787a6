"""Trainers that plans are exported to, and the plans that each can train."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from search_spaces.facts import ModelFacts
from search_spaces.plan import Plan
from search_spaces.settings import trainer_refusals as refusals
from search_spaces.settings.expressed_knobs import ExpressedKnobs, expressed_knobs
from search_spaces.specification.schema import SweepSpec


@dataclass(frozen=True, slots=True)
class Trainer:
    """The plans that a trainer can train.

    Attributes:
        expressed: The knobs that it expresses, for each engine that it supports.
        others: Yields the reasons against a plan that are no matter of a single knob, given the
            specification, the model and the device (cpu, cuda or tpu).
    """

    expressed: tuple[ExpressedKnobs, ...]
    others: Callable[[Plan, SweepSpec, ModelFacts, str], Iterable[str]]

    def refusals(self, plan: Plan, spec: SweepSpec, model: ModelFacts, device: str) -> list[str]:
        """Returns the reasons why it cannot train a plan; empty if it can."""
        knobs = next((knobs for knobs in self.expressed if knobs.engine == plan.engine), None)
        if knobs is None:
            return [f"engine is {plan.engine}"]
        return [*knobs.refusals(plan), *self.others(plan, spec, model, device)]


_OTHERS: Mapping[str, Callable[[Plan, SweepSpec, ModelFacts, str], Iterable[str]]] = {
    "accelerate": refusals.accelerate_refusals,
    "hf-trainer": refusals.hf_refusals,
    **dict.fromkeys(("axolotl", "llama-factory", "trl", "ms-swift"), refusals.file_refusals),
    "verl": refusals.verl_refusals,
    "torchtitan": refusals.titan_refusals,
    "megatron-bridge": refusals.bridge_refusals,
}


@cache
def trainer_table() -> Mapping[str, Trainer]:
    """Returns the trainers by name, in the order of preference if the user names none."""
    return {name: Trainer(knobs, _others(name)) for name, knobs in expressed_knobs().items()}


def _others(name: str) -> Callable[[Plan, SweepSpec, ModelFacts, str], Iterable[str]]:
    own = _OTHERS.get(name)
    return lambda *job: (*refusals.tpu_refusals(name, job[-1]), *(own(*job) if own else ()))
