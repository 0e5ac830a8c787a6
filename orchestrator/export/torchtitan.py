"""torchtitan's configuration in TOML: of the last release that reads it, see decision 24."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.export import torchtitan_sections
from orchestrator.export.bundle import Bundle
from orchestrator.export.scripts import filled, quotable_title, start_command
from orchestrator.export.taken import Taken
from orchestrator.export.torchtitan_sections import FLAVORS, every_nth, flavor_of
from search_spaces.checkpointing import render_checkpoint
from search_spaces.errors import UserError
from search_spaces.plan import Plan
from search_spaces.render import render_environment

VERSION = "0.2.2"  # whose source all of this was read in
CONFIG = "train.toml"


def refusals(plan: Plan) -> Iterator[str]:
    """Why torchtitan cannot train this plan, a reason each."""
    if plan.engine != "torch":
        yield f"its engine is {plan.engine}"
    if plan.precision == "fp16":
        yield "precision is fp16: torchtitan scales no loss"
    if plan.optimizer not in torchtitan_sections.IMPLEMENTATIONS:
        yield f"optimizer is {plan.optimizer}: torchtitan has AdamW, fused and foreach"
    if plan.compression != "none":
        yield f"compression is {plan.compression}: torchtitan sends gradients as they are"
    yield from _layout(plan)
    yield from _checkpointing(plan)


def export(taken: Taken) -> Bundle:
    """The configuration, and how torchtitan is started with it.

    Raises:
        UserError: If torchtitan cannot train this model so.
    """
    if misfits := list(_misfits(taken)):
        number = taken.record.number
        raise UserError(f"torchtitan cannot say the plan of trial {number}: {'; '.join(misfits)}")
    command = start_command(taken, f"-m torchtitan.train --job.config_file {CONFIG}")
    unsaid = tuple(_unsaid(taken))
    text = filled(
        "torchtitan.toml.jinja",
        title=quotable_title(taken),
        command=command,
        version=VERSION,
        unsaid=[quotable(sentence) for sentence in unsaid],
        sections=torchtitan_sections.sections(taken),
    )
    return Bundle(
        format="torchtitan",
        files={CONFIG: text},
        command=command,
        environment=render_environment(taken.plan, taken.device),
        unsaid=unsaid,
        local=False,
    )


def quotable(sentence: str) -> str:
    """Fit for a comment, whatever names are in it."""
    return ascii(sentence)[1:-1]


def _layout(plan: Plan) -> Iterator[str]:
    split = [name for name in ("tensor", "pipeline") if getattr(plan, name) > 1]
    sharded = plan.zero_stage in (2, 3) and plan.data > plan.replicas
    if plan.zero_stage in (2, 3) and not sharded:
        yield "it shards over one rank: torchtitan shards over two or more"
    if plan.zero_stage == 0 and plan.data > 1 and split:
        yield f"zero_stage is 0 beside {' and '.join(split)}: torchtitan replicates whole models"
    if not sharded and split and plan.precision != "fp32":
        yield (
            f"precision is {plan.precision} beside {' and '.join(split)} without FSDP: torchtitan"
            " computes in fp32 then"
        )
    if plan.tensor > 1 and not plan.sequence_parallel:
        yield f"tensor is {plan.tensor} without sequence_parallel: torchtitan splits it always"


def _checkpointing(plan: Plan) -> Iterator[str]:
    ratio = plan.checkpoint_ratio
    if not ratio:
        return
    if plan.checkpoint_mode == "selective":
        yield "checkpoint_mode is selective: torchtitan's keeps every other matmul's output"
    if plan.checkpoint_offload:
        yield "checkpoint_offload is on: torchtitan keeps activations where they are"
    if abs(ratio * round(1 / ratio) - 1) > 0.02:
        yield f"checkpoint_ratio is {ratio:g}: torchtitan recomputes all blocks or every nth"
    elif ratio < 1 and plan.pipeline > 1:
        yield (
            f"checkpoint_ratio is {ratio:g} beside pipeline: torchtitan counts blocks in each rank"
        )


def _misfits(taken: Taken) -> Iterator[str]:
    """What only the model or the specification tells."""
    plan, train, blocks = taken.plan, taken.spec.train, taken.model.blocks
    if train.method != "full":
        yield f"train.method is {train.method}"
    if train.sequence_length % plan.tensor:
        yield f"train.sequence_length {train.sequence_length} is no multiple of tensor"
    chosen = render_checkpoint(plan, blocks).blocks
    if chosen and every_nth(chosen, blocks) is None:
        yield f"{len(chosen)} of {blocks} blocks are recomputed, which are not every nth"
    flavor = flavor_of(taken)
    if flavor is not None and flavor[0] == "qwen3" and plan.pipeline > 1:
        yield "torchtitan has no pipelines for qwen3"


def _unsaid(taken: Taken) -> Iterator[str]:
    plan, train = taken.plan, taken.spec.train
    yield (
        f"It is for torchtitan {VERSION}, the last release that reads TOML; 0.3.0 is configured in"
        " Python. Files such as this were read by its parser, and trained nothing."
    )
    if flavor_of(taken) is None:
        yield (
            f"torchtitan has no flavor that is {taken.spec.model.name} as it was measured (it has"
            f" {', '.join(FLAVORS)}): put your own into [model], which names none."
        )
    yield (
        "Model, weights and data are torchtitan's: the losses are others, and so may be the speed"
        " and the peak. Put your dataset into [training] and your tokenizer's folder into [model]"
        " hf_assets_path."
    )
    yield (
        f"Samples were {plan.batching}; torchtitan's dataset is one text, cut at each"
        f" {train.sequence_length} tokens."
    )
    if plan.attention != "sdpa":
        yield f"Attention was `{plan.attention}`; a flavor of torchtitan has its own (sdpa)."
    if train.warmup_steps:
        yield "The learning rate's warm-up is a step ahead of what was measured."
    if plan.zero_stage == 0 and plan.data > 1:
        yield (
            "torchtitan's DDP reduces gradients in each forward pass of a step, in buckets of 100"
            f" MiB beside the gradients; measured were buckets of {plan.bucket_mib} MiB"
            f"{'' if plan.gradient_as_bucket_view else ' beside them'}, once a step."
        )
    if plan.replicas > 1 and plan.accumulation > 1:
        yield "torchtitan adds replicas' gradients up in each pass, measured was once a step."
    if plan.offload_parameters == "cpu" and not plan.pin_memory:
        yield "torchtitan pins the host memory of what is offloaded; measured was without."
    if taken.device == "cpu":
        yield "It was measured on CPUs, and torchtitan trains on accelerators alone."
    if plan.accelerator:
        yield f"It was measured on nodes of kind {plan.accelerator}."
    if plan.world_size % taken.hosts:
        yield "`$RANKS_HERE` is how many ranks run on the host where the command is said."
