"""Export for torchtitan 0.3: a Python file with its `Trainer.Config`."""

from typing import Any

from orchestrator.export import scripts
from orchestrator.export.bundle import Bundle
from orchestrator.export.source import ExportSource
from orchestrator.export.trainer_file import export_values
from search_spaces.settings.render import render_environment
from search_spaces.settings.trainer_refusals import TITAN_MODELS
from search_spaces.specification.trainer_configs.document import tree_of
from search_spaces.specification.trainer_configs.tables import trainers, write

_FILE = "titan_config.py"


def export(source: ExportSource) -> Bundle:
    """Returns the configuration, with the command that trains by it."""
    package, flavor = TITAN_MODELS[source.spec.model.name]
    started = scripts.start_command(source).removesuffix(f" {scripts.SCRIPT}")
    command = f"{started} -m torchtitan.train --module titan_config --config train"
    sections = _sections(source)
    implementation = sections["optimizer"].pop("implementation")
    recomputed = sections.pop("activation_checkpoint")["mode"]
    train = source.spec.train
    sections["optimizer"] |= {"betas": train.betas or (0.9, 0.999), "eps": train.eps or 1e-8}
    text = scripts.render_template(
        "titan_config.py.jinja",
        title=scripts.quotable_title(source),
        command=command,
        package=package,
        flavor=flavor,
        sections=sections,
        recomputed=recomputed,
        implementation=implementation,
    )
    return Bundle(
        format="torchtitan",
        files={_FILE: text},
        command=command,
        environment=(*render_environment(source.plan, source.device), ("PYTHONPATH", ".")),
        local=False,
    )


def _sections(source: ExportSource) -> dict[str, Any]:
    plan, values = source.plan, export_values(source)
    if plan.pipeline > 1:  # torchtitan cuts the samples of a rank into micro-batches
        values["_micro_batch"] = plan.micro_batch * plan.accumulation
        values["_part"] = plan.micro_batch
    else:
        del values["baseline.pipeline_schedule"]
    if plan.tensor == 1:
        del values["baseline.sequence_parallel"]
    return tree_of(write(trainers()["torchtitan"], values))
