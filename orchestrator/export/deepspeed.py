"""Export for DeepSpeed: its configuration, and a script."""

import json

from orchestrator.export import scripts
from orchestrator.export.bundle import Bundle
from orchestrator.export.source import ExportSource
from search_spaces.settings.deepspeed_config import DeepSpeedSettings, render_deepspeed

CONFIG = "ds_config.json"


def export(source: ExportSource) -> Bundle:
    """Returns the configuration, and a script for DeepSpeed's launcher or `torchrun`."""
    settings = deepspeed_settings(source)
    command = scripts.start_command(source)
    words = scripts.template_values(source, settings)
    return Bundle(
        format="deepspeed",
        files={
            scripts.SCRIPT: scripts.render_script("deepspeed.py.jinja", **words, command=command),
            CONFIG: config_text(settings),
        },
        command=command,
        environment=scripts.start_environment(source.plan, source.device),
    )


def deepspeed_settings(source: ExportSource) -> DeepSpeedSettings:
    """Returns the plan as settings of DeepSpeed."""
    return render_deepspeed(source.plan, source.model, source.spec, source.device)


def config_text(settings: DeepSpeedSettings) -> str:
    """Returns DeepSpeed's configuration as readable JSON."""
    return json.dumps(settings.config, indent=2, sort_keys=True) + "\n"
