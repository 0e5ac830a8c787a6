"""Export for DeepSpeed: its configuration, and a script."""

from __future__ import annotations

import json
from collections.abc import Iterator

from orchestrator.export.bundle import Bundle
from orchestrator.export.scripts import (
    SCRIPT,
    render_template,
    start_command,
    template_values,
    user_tasks,
    wrapper_refusals,
)
from orchestrator.export.source import ExportSource
from search_spaces.plan import Plan
from search_spaces.settings.deepspeed_config import DeepSpeedSettings, render_deepspeed
from search_spaces.settings.render import Environment, render_environment

CONFIG = "ds_config.json"


def refusals(plan: Plan) -> Iterator[str]:
    """Yields the reasons why DeepSpeed's configuration cannot express a plan."""
    yield from wrapper_refusals(plan, "deepspeed")


def export(source: ExportSource) -> Bundle:
    """Returns the configuration, and a script for DeepSpeed's launcher or `torchrun`."""
    settings = deepspeed_settings(source)
    command = start_command(source)
    words = template_values(source, settings)
    return Bundle(
        format="deepspeed",
        files={
            SCRIPT: render_template("deepspeed.py.jinja", **words, command=command),
            CONFIG: config_text(settings),
        },
        command=command,
        environment=environment_of(source),
        caveats=(*user_tasks(source), optimizer_caveat(source)),
    )


def deepspeed_settings(source: ExportSource) -> DeepSpeedSettings:
    """Returns the plan as settings of DeepSpeed."""
    return render_deepspeed(source.plan, source.model, source.spec, source.device)


def config_text(settings: DeepSpeedSettings) -> str:
    """Returns DeepSpeed's configuration as readable JSON."""
    return json.dumps(settings.config, indent=2, sort_keys=True) + "\n"


def environment_of(source: ExportSource) -> Environment:
    """Returns the variables that each process needs before it starts."""
    environment = dict(render_environment(source.plan, source.device))
    if source.device == "cpu":
        environment["DS_ACCELERATOR"] = "cpu"  # DeepSpeed reads it once, at import
    return tuple(environment.items())


def optimizer_caveat(source: ExportSource) -> str:
    """Returns a sentence on the settings that DeepSpeed's configuration leaves out."""
    return (
        f"The optimizer ({source.plan.optimizer}) and the learning-rate schedule are in the script,"
        " not in the configuration: the plan was measured with torch's own."
    )
