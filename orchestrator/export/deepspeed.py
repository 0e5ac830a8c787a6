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
from orchestrator.export.taken import Taken
from search_spaces.plan import Plan
from search_spaces.render import render_deepspeed, render_environment

CONFIG = "ds_config.json"


def refusals(plan: Plan) -> Iterator[str]:
    """Why DeepSpeed's configuration cannot say this plan, a reason each."""
    yield from unsplit(plan, "deepspeed")


def export(taken: Taken) -> Bundle:
    """The configuration, and a script that DeepSpeed's launcher or `torchrun` starts."""
    plan, device = taken.plan, taken.device
    settings = render_deepspeed(plan, taken.model, taken.spec, device)
    command = start_command(taken)
    words = script_words(taken, settings)
    environment = dict(render_environment(plan, device))
    if device == "cpu":
        environment["DS_ACCELERATOR"] = "cpu"  # picked once, when DeepSpeed is imported
    return Bundle(
        format="deepspeed",
        files={
            SCRIPT: filled("deepspeed.py.jinja", **words, command=command),
            CONFIG: json.dumps(settings.config, indent=2, sort_keys=True) + "\n",
        },
        command=command,
        environment=tuple(environment.items()),
        unsaid=(*what_is_yours(taken), _OPTIMIZER.format(name=plan.optimizer)),
    )


_OPTIMIZER = (
    "The optimizer ({name}) and the learning rate's schedule stand in the script, not in the"
    " configuration: what was measured was made by torch."
)
