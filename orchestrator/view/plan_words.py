"""Plans in words: one wording for views, reports and MLflow."""

from __future__ import annotations

from collections.abc import Callable, Collection

from search_spaces.knobs import KNOBS
from search_spaces.plan import RESTS, Plan
from search_spaces.space import Space
from search_spaces.spec.schema import SweepSpec


def plan_words(plan: Plan, *, omit: Collection[str] = ()) -> str:
    """The plan as a person would say it: `ddp micro 4 x 4 ckpt 50 % sdpa packed fp32`.

    Args:
        plan: The plan; a knob at rest has no word, `micro 4 x 4` is micro-batch times
            accumulation.
        omit: Names of knobs to leave out, since every plan around has the same value.
    """
    said = (say(plan) for names, say in _WORDS if not set(names) <= set(omit))
    return " ".join(word for word in said if word)


def fixed_knobs(space: Space) -> frozenset[str]:
    """Names of the knobs that have one value in the whole space; never micro_batch."""
    fixed = {name for name, values in space.domains if len(values) == 1}
    return frozenset(fixed - {"micro_batch"})


def fixed_words(space: Space) -> str:
    """What all plans of the space have in common, `sdpa fp32`; empty if that is nothing."""
    fixed = fixed_knobs(space)
    said = (say(space.baseline) for names, say in _WORDS if set(names) <= fixed)
    return " ".join(word for word in said if word)


def lossy_words(plan: Plan, spec: SweepSpec) -> str:
    """Which knobs change the numerics that the spec trains with, `bf16`; empty if none does."""
    changed = (knob.name for knob in KNOBS if knob.lossy(getattr(plan, knob.name), spec))
    return " ".join(_LOSSY_WORDS[name](plan) for name in changed)


def lossy_label(lossy: str) -> str:
    """What `lossy_words` found, to stand behind a plan's words; empty if that is nothing."""
    return f" (lossy: {lossy})" if lossy else ""


def labelled_words(plan: Plan, spec: SweepSpec, *, omit: Collection[str] = ()) -> str:
    """The plan's words, labelled where it does not train the numerics that the spec asks for."""
    return plan_words(plan, omit=omit) + lossy_label(lossy_words(plan, spec))


def may_be_lossy(space: Space, spec: SweepSpec) -> bool:
    """Whether any value that is searched changes the numerics."""
    domains = dict(space.domains)
    return any(knob.lossy(value, spec) for knob in KNOBS for value in domains.get(knob.name, ()))


def strategy(plan: Plan) -> str:
    """How data ranks hold the model's states: `ddp`, `hsdp zero3 2 x 4`, `deepspeed zero2`."""
    if plan.engine == "deepspeed":
        return f"deepspeed zero{plan.zero_stage}"
    if plan.zero_stage == 0:
        return "ddp" if plan.data > 1 else "one replica"
    if plan.replicas > 1:
        return f"hsdp zero{plan.zero_stage} {plan.replicas} x {plan.data // plan.replicas}"
    return f"fsdp zero{plan.zero_stage}"


def _tensor(plan: Plan) -> str:
    sequence = " sp" if plan.sequence_parallel else ""
    return f"tp {plan.tensor}{sequence}" if plan.tensor > 1 else ""


def _pipeline(plan: Plan) -> str:
    return f"pp {plan.pipeline} {plan.pipeline_schedule}" if plan.pipeline > 1 else ""


def _offload(plan: Plan) -> str:
    states, weights = plan.offload_optimizer, plan.offload_parameters
    if states == weights:
        return "" if states == "none" else f"offload {states}"
    parts = {"optimizer": states, "weights": weights}
    return "offload " + " ".join(f"{name} {to}" for name, to in parts.items() if to != "none")


def _aio(plan: Plan) -> str:
    names = ("aio_block_kib", "aio_queue_depth", "aio_threads")
    if all(getattr(plan, name) == RESTS[name] for name in names):
        return ""
    return f"aio {plan.aio_block_kib} KiB x {plan.aio_queue_depth} x {plan.aio_threads}"


def _checkpointing(plan: Plan) -> str:
    if not plan.checkpoint_ratio:
        return ""
    mode = " selective" if plan.checkpoint_mode == "selective" else ""
    where = " on host" if plan.checkpoint_offload else ""
    return f"ckpt {100 * plan.checkpoint_ratio:.0f} %{mode}{where}"


def _unless_at_rest(name: str, word: str) -> tuple[tuple[str, ...], Callable[[Plan], str]]:
    """Says the word where the knob is not at rest; {} stands for its value."""

    def say(plan: Plan) -> str:
        value = getattr(plan, name)
        return "" if value == RESTS[name] else word.format(str(value).replace("_", " "))

    return (name,), say


# The ranks need no word of their own: a sweep's global batch is fixed, so they follow
# from micro-batch and accumulation.
_WORDS: tuple[tuple[tuple[str, ...], Callable[[Plan], str]], ...] = (
    (("accelerator",), lambda plan: plan.accelerator),
    (("engine", "zero_stage", "replicas"), strategy),
    (("offload_optimizer", "offload_parameters"), _offload),
    _unless_at_rest("pin_memory", "pinned"),
    (("aio_block_kib", "aio_queue_depth", "aio_threads"), _aio),
    (("tensor", "sequence_parallel"), _tensor),
    (("pipeline", "pipeline_schedule"), _pipeline),
    (("micro_batch",), lambda plan: f"micro {plan.micro_batch} x {plan.accumulation}"),
    (("checkpoint_ratio", "checkpoint_mode", "checkpoint_offload"), _checkpointing),
    (("attention",), lambda plan: plan.attention.replace("_attention_", "")),
    (("batching",), lambda plan: plan.batching),
    (("precision",), lambda plan: plan.precision),
    _unless_at_rest("compile", "compile"),
    _unless_at_rest("optimizer", "{}"),
    _unless_at_rest("bucket_mib", "bucket {}"),
    _unless_at_rest("gradient_as_bucket_view", "own gradients"),
    _unless_at_rest("compression", "send {}"),
    _unless_at_rest("overlap", "no overlap"),
    _unless_at_rest("contiguous_gradients", "scattered gradients"),
    _unless_at_rest("prefetch_mib", "prefetch {}"),
    _unless_at_rest("loader_workers", "loaders {}"),
    _unless_at_rest("loader_pin_memory", "pinned batches"),
    _unless_at_rest("allocator", "{}"),
)
_LOSSY_WORDS: dict[str, Callable[[Plan], str]] = {
    "precision": lambda plan: plan.precision,
    "optimizer": lambda plan: plan.optimizer.replace("_", " "),
    "compression": lambda plan: f"send {plan.compression}",
}
