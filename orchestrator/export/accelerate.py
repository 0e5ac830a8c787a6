"""Export for Accelerate: a configuration of `accelerate launch`, and a script."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from orchestrator.export import scripts
from orchestrator.export.bundle import Bundle
from orchestrator.export.source import ExportSource
from orchestrator.export.torchrun import torch_words
from search_spaces.errors import require
from search_spaces.settings.render import render_environment

CONFIG = "accelerate_config.yaml"


def export(source: ExportSource) -> Bundle:
    """Returns the configuration, and a script that `accelerate launch` starts."""
    plan = source.plan
    command = _command(source)
    words = torch_words(source) | {"wrapping": None}  # by Accelerate
    return Bundle(
        format="accelerate",
        files={
            scripts.SCRIPT: scripts.render_script("accelerate.py.jinja", **words, command=command),
            CONFIG: yaml.safe_dump(configuration(source), sort_keys=False),
        },
        command=command,
        environment=render_environment(plan, source.device),
        caveats=tuple(_caveats(source)),
    )


def _command(source: ExportSource) -> str:
    if source.hosts == 1:
        return f"accelerate launch --config_file {CONFIG} {scripts.SCRIPT}"
    return (
        f"accelerate launch --config_file {CONFIG} --machine_rank $HOST_RANK --main_process_ip"
        f" {scripts.HEAD} --main_process_port {scripts.PORT} {scripts.SCRIPT}"
    )


def configuration(source: ExportSource) -> dict[str, Any]:
    """Renders the configuration with Accelerate's own `ClusterConfig`, which checks its fields.

    Raises:
        MissingExtraError: If Accelerate is not installed.
    """
    require("accelerate")
    from accelerate.commands.config.config_args import ClusterConfig  # takes seconds

    return dict(ClusterConfig(**_fields(source)).to_dict())


def _fields(source: ExportSource) -> dict[str, Any]:
    plan = source.plan
    autocasts = plan.precision != "fp32" and plan.states == "fp32"
    fields: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": _distributed(source),
        "mixed_precision": plan.precision if autocasts else "no",
        "use_cpu": source.device == "cpu",
        "debug": False,
        "num_processes": plan.world_size,
        "num_machines": source.hosts,
        "machine_rank": 0,
        "rdzv_backend": "static",
        "same_network": True,
    }
    if not plan.zero_stage:
        return fields
    fields["fsdp_config"] = {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": plan.zero_stage == 3,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_offload_params": plan.offload_parameters == "cpu",
        "fsdp_activation_checkpointing": False,  # the script wraps the blocks to recompute
        "fsdp_cpu_ram_efficient_loading": False,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }
    if plan.replicas > 1:
        fields["parallelism_config"] = {
            "parallelism_config_dp_replicate_size": plan.replicas,
            "parallelism_config_dp_shard_size": plan.data // plan.replicas,
        }
    return fields


def _distributed(source: ExportSource) -> str:
    if source.plan.zero_stage:
        return "FSDP"
    if source.plan.data == 1:
        return "NO"
    # MULTI_CPU would start ranks with MPI only. MULTI_GPU starts them with torchrun's agent, and
    # the script tells its Accelerator that they are on CPUs
    return "MULTI_GPU"


def _caveats(source: ExportSource) -> Iterator[str]:
    plan = source.plan
    yield from scripts.user_tasks(source)
    yield from scripts.pinning_caveats(plan, "Accelerate")
    if plan.checkpoint_ratio > 0:
        yield (
            f"The script recomputes {100 * plan.checkpoint_ratio:.0f} % of the blocks itself;"
            " Accelerate can only recompute all of them or none."
        )
    if plan.zero_stage and source.spec.model.name.count(":"):
        yield "FSDP wraps the classes in the model's `_no_split_modules`; yours must list them."
    if source.hosts > 1:
        yield "`$HOST_RANK` is 0 on the host that `$HEAD` names, and 1, 2, ... on the others."
