"""Export for Ray Train: a script with a stock trainer, for either engine."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

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
    tpus, resources = slice_of(source), {"CPU": source.spec.cluster.cpus_per_worker}
    if source.device in RESOURCES:
        resources[RESOURCES[source.device]] = 1
    script = scripts.render_script(
        "ray_train.py.jinja",
        **words,
        command=_COMMAND,
        engine=plan.engine,
        environment=(*environment, *_launch_of(source, tpus), _PRIORITY),
        resources=resources,
        accelerator=source.spec.cluster.accelerator,
        tpus=tpus,
        report_steps=math.ceil(_REPORT_SECONDS / source.measured.step_seconds.value),
    )
    return {scripts.SCRIPT: script} | files


def _launch_of(source: ExportSource, tpus: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    """Yields what torch_tpu's ranks of one host must agree on: see `meet_tpus`."""
    if tpus is None or source.hosts > 1:
        return
    ports = range(8070, 8070 + source.plan.world_size)
    yield "TORCH_TPU_SLICEBUILDER_ADDRESSES", ",".join(f"localhost:{port}" for port in ports)
    axes = [*tpus["topology"].split("x"), "1"][:3]
    yield "TORCH_TPU_TOPOLOGY", ",".join(axes + ["2"] * (tpus["devices_per_chip"] == 2))
