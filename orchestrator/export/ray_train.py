"""Export for Ray Train: a script with a stock trainer, for either engine."""

import math

from orchestrator.export import deepspeed, scripts, torchrun
from orchestrator.export.bundle import Bundle
from orchestrator.export.source import ExportSource, slice_of
from search_spaces.hardware.device import RESOURCES
from search_spaces.settings.render import render_environment

_COMMAND = f"python {scripts.SCRIPT}"
_REPORT_SECONDS = 60.0  # a report waits up to 2 s for Ray Train's controller to poll
_PRIORITY = ("RAY_worker_niceness", "0")  # as measured; Ray's default is 15


def export(source: ExportSource) -> Bundle:
    """Returns the script, which starts Ray if none is running."""
    return Bundle(format="ray-train", files=files_of(source), command=_COMMAND)


def files_of(source: ExportSource) -> dict[str, str]:
    """Returns the script, and the configuration of its engine if it has one."""
    plan, files = source.plan, {}
    if plan.engine == "deepspeed":
        settings = deepspeed.deepspeed_settings(source)
        words = scripts.template_values(source, settings)
        environment = scripts.start_environment(plan, source.device)
        files[deepspeed.CONFIG] = deepspeed.config_text(settings)
    else:
        words, environment = torchrun.torch_words(source), render_environment(plan, source.device)
    resources = {"CPU": source.spec.cluster.cpus_per_worker}
    if source.device in RESOURCES:
        resources[RESOURCES[source.device]] = 1
    script = scripts.render_script(
        "ray_train.py.jinja",
        **words,
        command=_COMMAND,
        engine=plan.engine,
        environment=(*environment, _PRIORITY),
        resources=resources,
        accelerator=source.spec.cluster.accelerator,
        tpus=slice_of(source),
        report_steps=math.ceil(_REPORT_SECONDS / source.measured.step_seconds.value),
    )
    return {scripts.SCRIPT: script} | files
