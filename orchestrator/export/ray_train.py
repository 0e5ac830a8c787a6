"""A stock trainer of Ray Train, whose ranks train as the scripts of the engines do."""

from __future__ import annotations

import math
from collections.abc import Iterator

from orchestrator.export import deepspeed, torchrun
from orchestrator.export.bundle import Bundle
from orchestrator.export.scripts import SCRIPT, filled, script_words, what_is_yours
from orchestrator.export.source import ExportSource
from search_spaces.plan import Plan
from search_spaces.settings.render import render_environment

_COMMAND = f"python {SCRIPT}"
_REPORT_SECONDS = 60.0  # a report waits for the next look of Ray Train's controller: up to 2 s
_PRIORITY = ("RAY_worker_niceness", "0")  # what was measured had it; Ray's own is 15


def refusals(plan: Plan) -> Iterator[str]:
    """Why the script cannot say this plan: why that of its engine cannot."""
    of_engine = deepspeed if plan.engine == "deepspeed" else torchrun
    yield from of_engine.refusals(plan)


def export(taken: ExportSource) -> Bundle:
    """The script, which starts Ray where there is none."""
    sentences = [*caveats(taken)]
    if taken.hosts > 1:
        sentences.append(
            "All nodes need this folder at the same path, with the packages that the script"
            " imports: `ray job submit --working-dir .` takes the folder there."
        )
    return Bundle(
        format="ray-train", files=files_of(taken), command=_COMMAND, unsaid=tuple(sentences)
    )


def files_of(taken: ExportSource) -> dict[str, str]:
    """The script, and what it reads of its engine."""
    plan, files = taken.plan, {}
    if plan.engine == "deepspeed":
        settings = deepspeed.deepspeed_settings(taken)
        words, environment = script_words(taken, settings), deepspeed.environment_of(taken)
        files[deepspeed.CONFIG] = deepspeed.config_text(settings)
    else:
        words, environment = torchrun.torch_words(taken), render_environment(plan, taken.device)
    resources = {"CPU": taken.spec.cluster.cpus_per_worker}
    if taken.device == "cuda":
        resources["GPU"] = 1
    script = filled(
        "ray_train.py.jinja",
        **words,
        command=_COMMAND,
        engine=plan.engine,
        environment=(*environment, _PRIORITY),
        resources=resources,
        accelerator=ascii(plan.accelerator),
        report_steps=math.ceil(_REPORT_SECONDS / taken.told.step_seconds.value),
    )
    return {SCRIPT: script} | files


def caveats(taken: ExportSource) -> Iterator[str]:
    """What the script leaves to its user, wherever it runs."""
    yield from what_is_yours(taken)
    if taken.plan.engine == "deepspeed":
        yield deepspeed.optimizer_is_in_the_script(taken)
