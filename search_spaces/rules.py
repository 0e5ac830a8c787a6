"""Why a plan is illegal: named reasons, each one function.

A rule looks at a plan and its surroundings and returns a sentence, or None if it has no
objection. It takes microseconds, so that an illegal plan never reaches a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from search_spaces.facts import ClusterFacts, ModelFacts
from search_spaces.knobs import CHECKPOINT_RATIOS
from search_spaces.outcome import Refused
from search_spaces.plan import Plan
from search_spaces.render import checkpointed_blocks
from search_spaces.spec.schema import SweepSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a rule may look at beside the plan."""

    spec: SweepSpec
    model: ModelFacts
    cluster: ClusterFacts


Rule = Callable[[Plan, Surroundings], str | None]


def global_batch_is_kept(plan: Plan, around: Surroundings) -> str | None:
    """Every plan takes the same samples per optimizer step, else speeds do not compare."""
    wanted = around.spec.train.global_batch
    if plan.global_batch == wanted:
        return None
    return (
        f"micro_batch {plan.micro_batch} x accumulation {plan.accumulation} x data {plan.data}"
        f" is {plan.global_batch}, train.global_batch is {wanted}"
    )


def cluster_has_room(plan: Plan, around: Surroundings) -> str | None:
    """A group that can never fit would be waited for without end (Ray Train retries it)."""
    slots = around.cluster.slots
    if plan.world_size <= slots:
        return None
    return f"needs {plan.world_size} ranks, the cluster has room for {slots}"


def sharding_needs_ranks(plan: Plan, _: Surroundings) -> str | None:
    """ZeRO over one rank splits nothing and only adds work."""
    if plan.zero_stage == 0 or plan.data > 1:
        return None
    return f"zero_stage {plan.zero_stage} splits state over data ranks, and there is one"


def attention_is_offered(plan: Plan, around: Surroundings) -> str | None:
    """The architecture must implement the attention that is asked for."""
    if plan.attention in around.model.attentions:
        return None
    offered = ", ".join(around.model.attentions) or "none by name"
    return f"{around.model.architecture} has no {plan.attention} attention, it has {offered}"


def checkpointing_needs_blocks(plan: Plan, around: Surroundings) -> str | None:
    """Recomputation wraps repeated blocks; a model without any cannot be checkpointed so."""
    if plan.checkpoint_ratio == 0 or around.model.blocks:
        return None
    return f"{around.model.name} has no repeated blocks to recompute"


def checkpoint_ratio_is_distinct(plan: Plan, around: Surroundings) -> str | None:
    """Two ratios that recompute the same number of blocks are one plan, measured twice."""
    ratio, blocks = plan.checkpoint_ratio, around.model.blocks
    searched = around.spec.space.checkpoint_ratio or CHECKPOINT_RATIOS
    if not blocks or ratio not in searched:
        return None
    count = checkpointed_blocks(ratio, blocks)
    same = [other for other in searched if checkpointed_blocks(other, blocks) == count]
    kept = min(same, key=lambda other: (abs(other * blocks - count), other))
    if ratio == kept:
        return None
    return f"checkpoint_ratio {ratio:g} recomputes {count} of {blocks} blocks, as {kept:g} does"


def packing_is_kept_apart(plan: Plan, around: Surroundings) -> str | None:
    """Packed samples must not attend to each other, or another problem is being solved."""
    if plan.batching != "packed" or around.model.packing:
        return None
    return f"{around.model.architecture} does not keep packed samples apart by position ids"


def batching_needs_lengths(plan: Plan, around: Surroundings) -> str | None:
    """With samples of one length there is nothing to group or to pack."""
    if plan.batching == "padded" or around.spec.data.kind != "fixed":
        return None
    return f"batching {plan.batching} equals padded where every sample has the same length"


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        rule.__name__: rule
        for rule in (
            global_batch_is_kept,
            cluster_has_room,
            sharding_needs_ranks,
            attention_is_offered,
            checkpointing_needs_blocks,
            checkpoint_ratio_is_distinct,
            packing_is_kept_apart,
            batching_needs_lengths,
        )
    }
)


def refusal(plan: Plan, around: Surroundings) -> Refused | None:
    """The first rule that forbids the plan, or None if it is legal."""
    for name, rule in RULES.items():
        if reason := rule(plan, around):
            return Refused(rule=name, detail=reason)
    return None
