"""What `accelerate launch` reads, and a script with its `Accelerator`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from orchestrator.export.bundle import Bundle
from orchestrator.export.scripts import HEAD, SCRIPT, filled, unsplit, what_is_yours
from orchestrator.export.source import ExportSource
from orchestrator.export.torchrun import torch_words
from search_spaces.errors import UserError
from search_spaces.plan import Plan
from search_spaces.settings.render import render_environment

CONFIG = "accelerate_config.yaml"
_PORT = 29500


def refusals(plan: Plan) -> Iterator[str]:
    """Why accelerate cannot say this plan, a reason each."""
    yield from unsplit(plan, "torch")
    if plan.compression != "none":
        yield f"compression is {plan.compression}, which the script of torchrun says"
    sharded = plan.zero_stage in (2, 3)
    if sharded and plan.optimizer == "adamw_8bit":
        yield "optimizer is adamw_8bit, which takes no shards of FSDP2"
    if sharded and plan.precision == "fp16":
        yield "precision is fp16 with FSDP2, whose loss scale torch keeps rank by rank"


def export(taken: ExportSource) -> Bundle:
    """The configuration, and a script that `accelerate launch` starts.

    Raises:
        UserError: If accelerate has no such plan on the devices that it was measured on.
    """
    plan = taken.plan
    if taken.device == "cpu" and plan.zero_stage:
        raise UserError(
            f"accelerate cannot say the plan of trial {taken.record.number}: on a CPU it replaces"
            " FSDP by DDP and says nothing"
        )
    command = _command(taken)
    words = torch_words(taken)
    return Bundle(
        format="accelerate",
        files={
            SCRIPT: filled("accelerate.py.jinja", **words, command=command),
            CONFIG: yaml.safe_dump(configuration(taken), sort_keys=False),
        },
        command=command,
        environment=render_environment(plan, taken.device),
        unsaid=tuple(_unsaid(taken)),
    )


def _command(taken: ExportSource) -> str:
    if taken.hosts == 1:
        return f"accelerate launch --config_file {CONFIG} {SCRIPT}"
    return (
        f"accelerate launch --config_file {CONFIG} --machine_rank $HOST_RANK --main_process_ip"
        f" {HEAD} --main_process_port {_PORT} {SCRIPT}"
    )


def configuration(taken: ExportSource) -> dict[str, Any]:
    """Renders the configuration by accelerate's own `ClusterConfig`, which checks its fields."""
    from accelerate.commands.config.config_args import ClusterConfig  # takes seconds

    return dict(ClusterConfig(**_fields(taken)).to_dict())


def _fields(taken: ExportSource) -> dict[str, Any]:
    plan = taken.plan
    told: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": _distributed(taken),
        "mixed_precision": "no" if plan.precision == "fp32" else plan.precision,
        "use_cpu": taken.device == "cpu",
        "debug": False,
        "num_processes": plan.world_size,
        "num_machines": taken.hosts,
        "machine_rank": 0,
        "rdzv_backend": "static",
        "same_network": True,
    }
    if not plan.zero_stage:
        return told
    told["fsdp_config"] = {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": plan.zero_stage == 3,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_offload_params": plan.offload_parameters == "cpu",
        "fsdp_activation_checkpointing": False,  # the script recomputes the blocks that it names
        "fsdp_cpu_ram_efficient_loading": False,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }
    if plan.replicas > 1:
        told["parallelism_config"] = {
            "parallelism_config_dp_replicate_size": plan.replicas,
            "parallelism_config_dp_shard_size": plan.data // plan.replicas,
        }
    return told


def _distributed(taken: ExportSource) -> str:
    if taken.plan.zero_stage:
        return "FSDP"
    if taken.plan.data == 1:
        return "NO"
    # MULTI_CPU would start ranks by MPI alone; by this, torchrun's agent starts them, and the
    # script's Accelerator is told that they are on CPUs
    return "MULTI_GPU"


def _unsaid(taken: ExportSource) -> Iterator[str]:
    plan = taken.plan
    yield from what_is_yours(taken)
    if plan.checkpoint_ratio > 0:
        yield (
            f"{100 * plan.checkpoint_ratio:.0f} % of the blocks are recomputed by the script:"
            " accelerate's own switch knows all of them or none."
        )
    if plan.zero_stage and taken.spec.model.name.count(":"):
        yield "FSDP wraps the classes in the model's `_no_split_modules`, which yours has to have."
    if taken.hosts > 1:
        yield "`$HOST_RANK` is 0 on the host that `$HEAD` names, and 1 and so on on the others."
