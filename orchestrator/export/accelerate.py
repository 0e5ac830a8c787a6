"""Export for Accelerate: a configuration of `accelerate launch`, and a script."""

from orchestrator.export import scripts
from orchestrator.export.bundle import Bundle
from orchestrator.export.source import ExportSource
from orchestrator.export.torchrun import torch_words
from search_spaces.errors import require
from search_spaces.settings.render import render_environment

CONFIG = "accelerate_config.yaml"


def export(source: ExportSource) -> Bundle:
    """Returns the configuration, and a script that `accelerate launch` starts.

    Raises:
        MissingExtraError: If Accelerate is not installed.
    """
    require("accelerate")
    plan, command = source.plan, _command(source)
    words = torch_words(source) | {"wrapping": None}  # by Accelerate or transformers
    words["fsdp"] = words["fsdp"] and not words["divided"]
    config = scripts.render_template(
        f"{CONFIG}.jinja",
        plan=plan,
        device=source.device,
        hosts=source.hosts,
        divided=words["divided"],
        autocasts=scripts.autocasts(plan),
    )
    return Bundle(
        format="accelerate",
        files={
            scripts.SCRIPT: scripts.render_script("accelerate.py.jinja", **words, command=command),
            CONFIG: config,
        },
        command=command,
        environment=render_environment(plan, source.device),
    )


def _command(source: ExportSource) -> str:
    if source.hosts == 1:
        return f"accelerate launch --config_file {CONFIG} {scripts.SCRIPT}"
    return (
        f"accelerate launch --config_file {CONFIG} --machine_rank $HOST_RANK --main_process_ip"
        f" {scripts.HEAD} --main_process_port {scripts.PORT} {scripts.SCRIPT}"
    )
