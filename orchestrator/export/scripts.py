"""Rendering of script templates, with the values and sentences that all scripts share."""

import functools
import json
from dataclasses import asdict

from jinja2 import Environment, PackageLoader, StrictUndefined

from orchestrator.export.source import ExportSource
from orchestrator.export.worker_code import complete_script
from orchestrator.report.labels import plan_words
from search_spaces.hardware.device import BACKENDS
from search_spaces.plan import Plan
from search_spaces.settings.deepspeed_config import DeepSpeedSettings
from search_spaces.settings.optimizer import (
    OptimizerSettings,
    ScheduleSettings,
    render_optimizer,
    render_schedule,
)
from search_spaces.settings.rank_layout import DRAW_STRIDE
from search_spaces.settings.render import (
    DdpSettings,
    Fsdp2Settings,
    TorchSettings,
    render_environment,
)
from search_spaces.settings.render import Environment as EnvironmentVariables
from search_spaces.settings.trainer_refusals import is_divided

SCRIPT = "train.py"
HEAD = "$HEAD"  # in commands that run on several hosts
PORT = 29500  # torchrun's default
_BATCHING = {
    "padded": "padded to the longest of a micro-batch",
    "grouped": "grouped by similar length and padded to the longest of a micro-batch",
    "packed": "packed end to end, with their position ids",
}


def render_template(template: str, **words: object) -> str:
    """Renders a template of `orchestrator/export/templates`."""
    return _templates().get_template(template).render(words)


def render_text(template: str, **words: object) -> str:
    """Renders a template of sentences, in which no value ends a line."""
    plain = _templates().overlay(finalize=lambda value: " ".join(str(value).splitlines()))
    return plain.get_template(template).render(words)


@functools.cache  # each template is compiled once
def _templates() -> Environment:
    # no HTML escapes: the templates are Python and YAML
    return Environment(
        loader=PackageLoader("orchestrator.export"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render_script(template: str, **words: object) -> str:
    """Renders a script, with the worker's code that it uses and the imports that it needs."""
    return complete_script(render_template(template, **words))


def literal(settings: OptimizerSettings | ScheduleSettings | DdpSettings | Fsdp2Settings) -> str:
    """Returns settings as a dict in Python, a line for each."""
    lines = (
        f"    {json.dumps(name)}: {json.dumps(value) if isinstance(value, str) else repr(value)},\n"
        for name, value in asdict(settings).items()
    )
    return "{\n" + "".join(lines) + "}"


def start_command(source: ExportSource) -> str:
    """Returns the torchrun command that starts the ranks; several hosts each run it."""
    ranks, hosts = source.plan.world_size, source.hosts
    if hosts == 1:
        return f"torchrun --nproc-per-node {ranks} {SCRIPT}"
    per_host = str(ranks // hosts) if ranks % hosts == 0 else "$RANKS_HERE"
    return (
        f"torchrun --nnodes {hosts} --nproc-per-node {per_host} --rdzv-backend c10d"
        f" --rdzv-endpoint {HEAD}:{PORT} {SCRIPT}"
    )


def start_environment(plan: Plan, device: str) -> EnvironmentVariables:
    """Returns the variables that each process of a plan needs before it starts.

    Args:
        plan: The plan.
        device: "cpu", "cuda" or "tpu".
    """
    environment = render_environment(plan, device)
    if plan.engine == "deepspeed" and device == "cpu":
        return (*environment, ("DS_ACCELERATOR", "cpu"))  # DeepSpeed reads it once, at import
    return environment


def template_values(
    source: ExportSource, settings: TorchSettings | DeepSpeedSettings
) -> dict[str, object]:
    """Returns the values that the templates of both engines need."""
    plan, train = source.plan, source.spec.train
    on_gpu = source.device == "cuda"
    on_host = "cpu" in (plan.offload_parameters, plan.offload_optimizer)
    backend, schedule = BACKENDS[source.device], render_schedule(train)
    if on_gpu and plan.engine == "torch" and plan.offload_parameters == "cpu":
        backend = "cpu:gloo,cuda:nccl"  # clipping sums the norms of gradients on the host
    return {
        "title": quotable_title(source),
        "plan": plan,
        "task": source.model.task,
        "train": train,
        "settings": settings,
        "device": source.device,
        "backend": backend,
        "host_optimizer": on_gpu and on_host,
        "checkpointed": bool(settings.blocks.recomputed),
        "stock_decay": train.decay == "stock",
        "optimizer": literal(render_optimizer(settings.optimizer_kind, train)),
        "wrapping": None,
        "fsdp": False,
        "divided": divided_by(plan),
        "sample_rank": functools.partial(_sample_rank, plan),
        "draw_stride": DRAW_STRIDE,
        "schedule": None if schedule is None else literal(schedule),
        "batching_words": _batching_words(plan),
    }


def divided_by(plan: Plan) -> str:
    """Returns the arguments of `DistributedConfig` if transformers divides the weights."""
    if not is_divided(plan):
        return ""
    degrees = {"fsdp_size": plan.data, "tp_size": plan.tensor, "ep_size": plan.experts}
    if plan.data > 1:
        degrees["fsdp_mixed_precision"] = plan.precision == "bf16"
    return ", ".join(f"{name}={value}" for name, value in degrees.items())


def autocasts(plan: Plan) -> bool:
    """Returns False if the weights that a step computes with are in 16 bits already."""
    if is_divided(plan):
        return plan.data == 1
    return plan.states == "fp32" or plan.engine == "deepspeed"


def _sample_rank(plan: Plan, rank: str) -> str:
    """Returns the expression of a rank's place among those with samples of their own."""
    return rank if plan.tensor == 1 else f"({rank} // {plan.tensor})"


def _batching_words(plan: Plan) -> str:
    words = _BATCHING[plan.batching]
    if plan.batching == "packed" and plan.attention.startswith("flash"):
        # without them transformers mixes the samples of several rows
        return f"{words}, cu_seq_lens_q, cu_seq_lens_k, max_length_q and max_length_k"
    if plan.pad_multiple > 1:
        return f"{words}, then to a multiple of {plan.pad_multiple} tokens"
    return words


def quotable_title(source: ExportSource) -> str:
    """Returns a title of the plan that is safe in a docstring or a comment, for any names."""
    title = f"Trial {source.record.number} of study {source.study}: {plan_words(source.plan)}."
    return ascii(title)[1:-1].replace('"', "'")
