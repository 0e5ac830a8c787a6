"""DeepSpeed's own configuration, and a script that trains with it."""

from __future__ import annotations

import json
from collections.abc import Iterator

from orchestrator.export.bundle import Bundle
from orchestrator.export.scripts import (
    SCRIPT,
    filled,
    script_words,
    start_command,
    unsplit,
    what_is_yours,
)
from orchestrator.export.source import ExportSource
from search_spaces.plan import Plan
from search_spaces.settings.render import (
    DeepSpeedSettings,
    Environment,
    render_deepspeed,
    render_environment,
)

CONFIG = "ds_config.json"


def refusals(plan: Plan) -> Iterator[str]:
    """Why DeepSpeed's configuration cannot say this plan, a reason each."""
    yield from unsplit(plan, "deepspeed")


def export(taken: ExportSource) -> Bundle:
    """The configuration, and a script that DeepSpeed's launcher or `torchrun` starts."""
    settings = deepspeed_settings(taken)
    command = start_command(taken)
    words = script_words(taken, settings)
    return Bundle(
        format="deepspeed",
        files={
            SCRIPT: filled("deepspeed.py.jinja", **words, command=command),
            CONFIG: config_text(settings),
        },
        command=command,
        environment=environment_of(taken),
        unsaid=(*what_is_yours(taken), optimizer_is_in_the_script(taken)),
    )


def deepspeed_settings(taken: ExportSource) -> DeepSpeedSettings:
    """What DeepSpeed does to the model."""
    return render_deepspeed(taken.plan, taken.model, taken.spec, taken.device)


def config_text(settings: DeepSpeedSettings) -> str:
    """DeepSpeed's configuration, for a person to look at as well."""
    return json.dumps(settings.config, indent=2, sort_keys=True) + "\n"


def environment_of(taken: ExportSource) -> Environment:
    """What has to stand in each process before it starts."""
    environment = dict(render_environment(taken.plan, taken.device))
    if taken.device == "cpu":
        environment["DS_ACCELERATOR"] = "cpu"  # picked once, when DeepSpeed is imported
    return tuple(environment.items())


def optimizer_is_in_the_script(taken: ExportSource) -> str:
    """What DeepSpeed's configuration leaves out."""
    return (
        f"The optimizer ({taken.plan.optimizer}) and the learning rate's schedule stand in the"
        " script, not in the configuration: what was measured was made by torch."
    )
