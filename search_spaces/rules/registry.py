"""Registry of all rules, in the order in which they apply: those that forbid most come first.

Rules take microseconds and run before anything else, so an illegal plan never reaches a worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import getattr_static
from types import MappingProxyType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from search_spaces.knobs.knob import always
from search_spaces.knobs.registry import KNOBS
from search_spaces.plan import DEFAULTS, Plan
from search_spaces.plan_table import KNOB_NAMES, PlanTable
from search_spaces.rules.adapters import (
    frozen_weights_have_their_precision,
    quantized_weights_fit,
    tensor_trains_all_weights,
)
from search_spaces.rules.base import Rule, RuleContext
from search_spaces.rules.compute import (
    allocator_fits_device,
    attention_can_be_used,
    attention_is_offered,
    attention_keeps_the_loss,
    checkpoint_offload_is_not_compiled,
    checkpoint_ratio_is_distinct,
    checkpointing_needs_blocks,
    compile_can_be_used,
    compiled_blocks_are_called,
    deepspeed_can_be_used,
    deepspeed_can_use_fp16,
    eight_bit_can_be_used,
    flash_needs_sixteen_bits,
    loader_pinning_needs_cuda,
    optimizer_fits_engine,
    optimizer_is_specified,
    recomputation_keeps_the_gradient,
    zero_3_compiles_no_selective_recomputation,
)
from search_spaces.rules.layout import (
    batching_needs_lengths,
    cluster_has_room,
    global_batch_is_kept,
    interleaving_has_whole_rounds,
    micro_batch_keeps_the_loss,
    packing_is_kept_apart,
    packing_is_read_by_stages,
    pad_multiple_divides,
    padding_keeps_the_loss,
    pipeline_can_cut,
    pipeline_has_blocks,
    pipeline_is_filled,
    pipeline_needs_torch,
    split_backward_is_plain,
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
    complex_weights_are_whole,
    compression_fits_device,
    fsdp_gathers_in_hooks,
    fsdp_groups_share_no_weights,
    gathered_weights_have_a_next_pass,
    prefetch_ends_with_the_blocks,
    ranks_reduce_the_same_weights,
    replicas_divide_data,
    replicas_leave_shards,
    resharding_splits_the_data_ranks,
    sharding_needs_ranks,
    static_graph_has_one_pass,
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
)
from search_spaces.trial import Refused

# For plans that a user types: the search never produces an inactive knob off its default.
_CONDITIONAL = tuple(
    (knob.name, DEFAULTS[knob.name], knob.is_active, knob.depends_on)
    for knob in KNOBS
    if knob.is_active is not always
)


def knob_at_default(plan: Plan, _: RuleContext) -> str | None:
    """An inactive knob off its default would give the same plan another name."""
    for name, default, is_active, depends_on in _CONDITIONAL:
        value = getattr(plan, name)
        if value == default or is_active({other: getattr(plan, other) for other in depends_on}):
            continue
        others = ", ".join(f"{other} {getattr(plan, other)}" for other in depends_on)
        return f"{name} {value} changes nothing with {others}: it must be {default}"
    return None


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        rule.__name__: rule
        for rule in (
            global_batch_is_kept,
            packing_is_kept_apart,
            packing_is_read_by_stages,
            micro_batch_keeps_the_loss,
            padding_keeps_the_loss,
            batching_needs_lengths,
            pad_multiple_divides,
            cluster_has_room,
            pipeline_needs_torch,
            pipeline_can_cut,
            pipeline_has_blocks,
            pipeline_is_filled,
            interleaving_has_whole_rounds,
            split_backward_is_plain,
            tensor_trains_all_weights,
            quantized_weights_fit,
            frozen_weights_have_their_precision,
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
            fsdp_gathers_in_hooks,
            fsdp_groups_share_no_weights,
            ranks_reduce_the_same_weights,
            complex_weights_are_whole,
            replicas_divide_data,
            replicas_leave_shards,
            checkpointing_needs_blocks,
            checkpoint_ratio_is_distinct,
            recomputation_keeps_the_gradient,
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
            attention_keeps_the_loss,
            attention_can_be_used,
            flash_needs_sixteen_bits,
            compile_can_be_used,
            compiled_blocks_are_called,
            eight_bit_can_be_used,
            optimizer_is_specified,
            optimizer_fits_engine,
            static_graph_has_one_pass,
            prefetch_ends_with_the_blocks,
            resharding_splits_the_data_ranks,
            gathered_weights_have_a_next_pass,
            compression_fits_device,
            allocator_fits_device,
            loader_pinning_needs_cuda,
            knob_at_default,
        )
    }
)
_IN_ORDER = tuple(RULES.items())


def refusal(plan: Plan, context: RuleContext) -> Refused | None:
    """Returns the objection of the first rule that forbids the plan; None if it is legal."""
    for name, rule in _IN_ORDER:
        if reason := rule(plan, context):
            return Refused(rule=name, detail=reason)
    return None


# The tree of knobs keeps inactive ones at their default, and this rule would read every knob.
_TREE_RULES = {name: rule for name, rule in RULES.items() if rule is not knob_at_default}
_KNOBS = frozenset(KNOB_NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """Result of applying the rules to a table.

    Attributes:
        legal: Mask of the rows without objection.
        ruled_out: Number of rows by the first rule that forbids them.
        examples: Objection of that rule to its first row.
    """

    legal: NDArray[np.bool_]
    ruled_out: dict[str, int]
    examples: dict[str, Refused]


def rule_out(table: PlanTable, context: RuleContext) -> Ruling:
    """Applies all rules to all plans of a tree, with the result of `refusal` plan by plan.

    Args:
        table: Plans with each inactive knob at its default.
        context: Inputs of the rules besides the plans.
    """
    legal = np.ones(len(table), dtype=bool)
    counts: dict[str, int] = {}
    first_rows: dict[str, int] = {}
    for name, rule in _TREE_RULES.items():
        refused = refused_rows(table, rule, context)
        if refused is None:
            continue
        refused &= legal
        if count := int(np.count_nonzero(refused)):
            counts[name], first_rows[name] = count, int(refused.argmax())
            legal &= ~refused
    # in row order, as if plans were checked one after the other
    examples = {
        name: Refused(rule=name, detail=str(RULES[name](table.plan(row), context)))
        for name, row in sorted(first_rows.items(), key=lambda item: item[1])
    }
    return Ruling(legal=legal, ruled_out=counts, examples=examples)


def refused_rows(table: PlanTable, rule: Rule, context: RuleContext) -> NDArray[np.bool_] | None:
    """Returns the mask of the rows that a rule forbids; None if it forbids none.

    A rule's answer depends only on the knobs that it reads: rows that agree in these get the same
    answer. The rule is called on one row of each group, and again on finer groups until it reads
    no new knob.
    """
    known_knobs: set[str] = set()
    while True:
        group_of, rows = table.group(sorted(known_knobs))
        plans = [_RecordingPlan(table, int(row)) for row in rows]
        answers = np.array([bool(rule(cast(Plan, plan), context)) for plan in plans], dtype=bool)
        knobs_read = {
            name for plan in plans for name in plan.knobs_read if len(table.values[name]) > 1
        }
        if knobs_read <= known_knobs:
            return answers[group_of] if answers.any() else None
        known_knobs |= knobs_read


class _RecordingPlan:
    """A plan of a table that records the knobs that are read, also by its properties."""

    __slots__ = ("_row", "_table", "knobs_read")

    def __init__(self, table: PlanTable, row: int) -> None:
        self._table = table
        self._row = row
        self.knobs_read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        if name in _KNOBS:
            self.knobs_read.add(name)
            return self._table.values[name][self._table.codes[name][self._row]]
        return getattr_static(Plan, name).__get__(self, Plan)
