"""Export for Kubeflow's Trainer: a TrainJob that starts the script by torchrun."""

from dataclasses import replace

from orchestrator.export import deepspeed, torchrun
from orchestrator.export.bundle import Bundle
from orchestrator.export.rayjob import COMMAND, KUSTOMIZATION, job_words
from orchestrator.export.scripts import render_template
from orchestrator.export.source import ExportSource

_JOB = "trainjob.yaml"


def export(source: ExportSource) -> Bundle:
    """Returns the script of the plan's engine, the job, and what mounts the script in its pods."""
    engine = deepspeed if source.plan.engine == "deepspeed" else torchrun
    bundle: Bundle = engine.export(source)
    words = job_words(source, bundle.files) | {"resource": _JOB, "environment": bundle.environment}
    manifests = {
        _JOB: render_template("trainjob.yaml.jinja", **words),
        KUSTOMIZATION: render_template("kustomization.yaml.jinja", **words),
    }
    return replace(
        bundle,
        format="trainjob",
        files=manifests | dict(bundle.files),
        command=COMMAND,
        environment=(),  # of the pods, in the job
        local=False,
        carries=False,
    )
