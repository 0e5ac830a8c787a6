"""All rules, in the order in which they are asked: those that forbid most come first.

A rule takes microseconds, so that an illegal plan never reaches a worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import getattr_static
from types import MappingProxyType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from search_spaces.knobs.registry import KNOBS, always
from search_spaces.plan import DEFAULTS, Plan
from search_spaces.plan_table import KNOB_NAMES, PlanTable
from search_spaces.rules.base import Rule, RuleContext
from search_spaces.rules.compute import (
    allocator_fits_device,
    attention_can_be_used,
    attention_is_offered,
    checkpoint_offload_is_not_compiled,
    checkpoint_ratio_is_distinct,
    checkpointing_needs_blocks,
    compile_can_be_used,
    deepspeed_can_be_used,
    deepspeed_can_use_fp16,
    eight_bit_can_be_used,
    flash_needs_sixteen_bits,
    loader_pinning_needs_cuda,
    model_compiles,
    optimizer_fits_engine,
    zero_3_compiles_no_selective_recomputation,
)
from search_spaces.rules.layout import (
    accelerator_is_there,
    batching_needs_lengths,
    cluster_has_room,
    global_batch_is_kept,
    interleaving_has_whole_rounds,
    packing_is_kept_apart,
    pipeline_can_cut,
    pipeline_has_blocks,
    pipeline_is_filled,
    pipeline_needs_torch,
)
from search_spaces.rules.offload import (
    cpu_adam_can_be_used,
    cpu_adam_is_the_optimizer,
    fsdp_offloads_all_or_nothing,
    nvme_can_be_used,
    nvme_has_a_folder,
    nvme_needs_deepspeed,
    optimizer_nvme_needs_zero_three,
    parameter_offload_needs_zero_three,
    pinning_needs_cuda,
)
from search_spaces.rules.sharding import (
    compression_fits_device,
    replicas_divide_data,
    replicas_leave_shards,
    sharding_needs_ranks,
    zero_one_needs_deepspeed,
)
from search_spaces.rules.tensor import (
    autotp_recomputes_whole_blocks,
    autotp_trains,
    sequence_can_be_split,
    sequence_divides,
    sequence_parallel_needs_torch,
    tensor_divides,
    tensor_has_a_plan,
    tensor_stays_inside_a_node,
    tensor_trains_all_weights,
)
from search_spaces.trial import Refused

# The search itself never gives such plans: this is for those that a user types.
_CONDITIONAL = tuple(
    (knob.name, DEFAULTS[knob.name], knob.is_active, knob.depends_on)
    for knob in KNOBS
    if knob.is_active is not always
)


def knob_at_default(plan: Plan, _: RuleContext) -> str | None:
    """A knob that changes nothing given the others would give the same plan another name."""
    for name, rest, matters, looks_at in _CONDITIONAL:
        value = getattr(plan, name)
        if value == rest or matters({other: getattr(plan, other) for other in looks_at}):
            continue
        others = ", ".join(f"{other} {getattr(plan, other)}" for other in looks_at)
        return f"{name} {value} changes nothing with {others}: it must be {rest}"
    return None


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        rule.__name__: rule
        for rule in (
            global_batch_is_kept,
            packing_is_kept_apart,
            batching_needs_lengths,
            accelerator_is_there,
            cluster_has_room,
            pipeline_needs_torch,
            pipeline_can_cut,
            pipeline_has_blocks,
            pipeline_is_filled,
            interleaving_has_whole_rounds,
            tensor_trains_all_weights,
            tensor_has_a_plan,
            tensor_stays_inside_a_node,
            tensor_divides,
            sequence_can_be_split,
            sequence_divides,
            sequence_parallel_needs_torch,
            autotp_trains,
            autotp_recomputes_whole_blocks,
            zero_one_needs_deepspeed,
            sharding_needs_ranks,
            replicas_divide_data,
            replicas_leave_shards,
            checkpointing_needs_blocks,
            checkpoint_ratio_is_distinct,
            checkpoint_offload_is_not_compiled,
            zero_3_compiles_no_selective_recomputation,
            fsdp_offloads_all_or_nothing,
            nvme_needs_deepspeed,
            parameter_offload_needs_zero_three,
            optimizer_nvme_needs_zero_three,
            nvme_has_a_folder,
            nvme_can_be_used,
            cpu_adam_can_be_used,
            cpu_adam_is_the_optimizer,
            pinning_needs_cuda,
            deepspeed_can_be_used,
            deepspeed_can_use_fp16,
            attention_is_offered,
            attention_can_be_used,
            flash_needs_sixteen_bits,
            compile_can_be_used,
            model_compiles,
            eight_bit_can_be_used,
            optimizer_fits_engine,
            compression_fits_device,
            allocator_fits_device,
            loader_pinning_needs_cuda,
            knob_at_default,
        )
    }
)
_IN_ORDER = tuple(RULES.items())


def refusal(plan: Plan, around: RuleContext) -> Refused | None:
    """The first rule that forbids the plan, or None if it is legal."""
    for name, rule in _IN_ORDER:
        if reason := rule(plan, around):
            return Refused(rule=name, detail=reason)
    return None


# A tree of knobs gives each its rest where it does not matter, and this rule reads all of them.
_OF_A_TREE = {name: rule for name, rule in RULES.items() if rule is not knob_at_default}
_KNOBS = frozenset(KNOB_NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What the rules say of a table.

    `legal` are its rows without objection; the others count for the first rule that forbids
    them: `ruled_out` by name, with what it said of the first such row in `examples`.
    """

    legal: NDArray[np.bool_]
    ruled_out: dict[str, int]
    examples: dict[str, Refused]


def rule_out(table: PlanTable, around: RuleContext) -> Ruling:
    """Asks all rules of all plans of a tree, as `refusal` does plan by plan.

    Args:
        table: Plans that have each knob at rest which changes nothing.
        around: What the rules look at beside the plans.
    """
    legal = np.ones(len(table), dtype=bool)
    counts: dict[str, int] = {}
    first_rows: dict[str, int] = {}
    for name, rule in _OF_A_TREE.items():
        refused = refused_rows(table, rule, around)
        if refused is None:
            continue
        refused &= legal
        if count := int(np.count_nonzero(refused)):
            counts[name], first_rows[name] = count, int(refused.argmax())
            legal &= ~refused
    # in the order of the rows, as plans are asked one after the other
    examples = {
        name: Refused(rule=name, detail=str(RULES[name](table.plan(row), around)))
        for name, row in sorted(first_rows.items(), key=lambda item: item[1])
    }
    return Ruling(legal=legal, ruled_out=counts, examples=examples)


def refused_rows(table: PlanTable, rule: Rule, around: RuleContext) -> NDArray[np.bool_] | None:
    """The rows of a table that a rule forbids, None if there are none.

    What a rule says follows from the knobs that it really reads: rows that have the same in all
    of these get the same answer. Which they are shows when it is asked, and it is asked again
    for more cases until it reads nothing new.
    """
    reads: set[str] = set()
    while True:
        group_of, rows = table.group(sorted(reads))
        views = [_Read(table, int(row)) for row in rows]
        answers = np.array([bool(rule(cast(Plan, view), around)) for view in views], dtype=bool)
        fresh = {name for view in views for name in view.read if len(table.values[name]) > 1}
        if fresh <= reads:
            return answers[group_of] if answers.any() else None
        reads |= fresh


class _Read:
    """A plan of a table that notes which knobs are read, through its properties too."""

    __slots__ = ("_row", "_table", "read")

    def __init__(self, table: PlanTable, row: int) -> None:
        self._table = table
        self._row = row
        self.read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        if name in _KNOBS:
            self.read.add(name)
            return self._table.values[name][self._table.codes[name][self._row]]
        return getattr_static(Plan, name).__get__(self, Plan)
