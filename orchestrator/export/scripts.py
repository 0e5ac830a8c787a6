"""Rendering of script templates, with the values and sentences that all scripts share."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import asdict

from jinja2 import Environment, PackageLoader, StrictUndefined

from orchestrator.export.source import ExportSource
from orchestrator.export.worker_code import complete_script
from orchestrator.report.labels import plan_words
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
        device: "cpu" or "cuda".
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
    backend, schedule = "nccl" if on_gpu else "gloo", render_schedule(train)
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
        "draw_stride": DRAW_STRIDE,
        "schedule": None if schedule is None else literal(schedule),
        "batching_words": _batching_words(plan),
    }


def _batching_words(plan: Plan) -> str:
    words = _BATCHING[plan.batching]
    if plan.batching == "packed" and plan.attention.startswith("flash"):
        # without them transformers mixes the samples of several rows
        return f"{words}, cu_seq_lens_q, cu_seq_lens_k, max_length_q and max_length_k"
    if plan.pad_multiple > 1:
        return f"{words}, then to a multiple of {plan.pad_multiple} tokens"
    return words


def pinning_caveats(plan: Plan, program: str) -> Iterator[str]:
    """Yields a sentence if FSDP2 did not pin host memory: the program always does.

    Source:
        accelerate/utils/dataclasses.py (1.15), which Trainer uses: `CPUOffloadPolicy()`, whose
        default is to pin.
    """
    if plan.engine == "torch" and plan.offload_parameters == "cpu" and not plan.pin_memory:
        yield f"{program} pins host memory for offload; the measured run did not."


def quotable_title(source: ExportSource) -> str:
    """Returns a title of the plan that is safe in a docstring or a comment, for any names."""
    title = f"Trial {source.record.number} of study {source.study}: {plan_words(source.plan)}."
    return ascii(title)[1:-1].replace('"', "'")


def user_tasks(source: ExportSource, batches: str = "make_steps") -> Iterator[str]:
    """Yields sentences on what every script leaves to its user.

    Args:
        source: The measured plan.
        batches: Name of the script's function that makes batches.
    """
    plan, spec = source.plan, source.spec
    yield (
        f"Put your model and data into `make_model` and `{batches}`. Until then they return the"
        " measured ones and need Plimsoll; `missing` checks what they need, so change it with them."
    )
    if plan.attention != "eager":
        yield f"Attention was `{plan.attention}`: load your model with it (`attn_implementation`)."
    if plan.batching != "padded":
        yield f"Micro-batches were {plan.batching}: yours must be too, for the same speed."
    if plan.pad_multiple > 1:
        yield (
            f"Micro-batches were padded to a multiple of {plan.pad_multiple} tokens: yours must be"
            f" too (`pad_to_multiple_of={plan.pad_multiple}` in collators of transformers)."
        )
    if plan.micro_batch_tokens:
        yield (
            f"Micro-batches had {plan.micro_batch_tokens} tokens at most, padding included, and all"
            " ranks as many of them in a step: yours must be cut so too."
        )
    if plan.loader_workers or plan.loader_pin_memory:
        yield (
            f"Batches came from {plan.loader_workers} loader processes per rank"
            f"{', in pinned memory' if plan.loader_pin_memory else ''}; the script makes them in"
            " the rank itself."
        )
    if spec.train.method == "lora":
        yield (
            f"LoRA adapters in fp32 were trained, on frozen weights in {source.model.base}:"
            " `make_model` must return your model with them, held so."
        )
    if kind := spec.cluster.accelerator:
        yield f"It was measured on nodes of kind {kind}."
    if plan.world_size % source.hosts:
        yield (
            f"{plan.world_size} ranks ran on {source.hosts} hosts, with different numbers per host:"
            " `$RANKS_HERE` is the number of ranks on the host that runs the command."
        )
