"""Labels: how plans, outcomes, records and validations are called in every report."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType

from orchestrator.core.events import LIKELY_TO_FIT
from orchestrator.core.state import SweepState
from orchestrator.core.validation import LossCheck, loss_check
from orchestrator.report.format import gib, plural, rate, spread
from search_spaces.knobs.registry import KNOBS
from search_spaces.plan import DEFAULTS, Plan
from search_spaces.space import Space
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import (
    Measured,
    Outcome,
    OutOfMemory,
    PlanForecast,
    Record,
    Refused,
    sentence,
)

KIND_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "measured": "measured",
        "out_of_memory": "out of memory",
        "timed_out": "timed out",
        "crashed": "crashed",
        "refused": "refused",
        "diverged": "diverged",
        "cancelled": "cancelled",
    }
)


_LOSSY_WORDS: dict[str, Callable[[Plan], str]] = {
    "precision": lambda plan: plan.precision,
    "optimizer": lambda plan: plan.optimizer.replace("_", " "),
    "compression": lambda plan: f"send {plan.compression}",
}


def outcome_words(outcome: Outcome) -> str:
    """The outcome's sentence on one line, labelled where the device had lowered its clocks."""
    words = " ".join(sentence(outcome).split())  # a crash's reason may span lines
    if isinstance(outcome, Measured) and outcome.conditions.throttled:
        return f"{words} (throttled: {', '.join(outcome.conditions.throttled)})"
    return words


def brief_outcome(outcome: Outcome) -> str:
    """The outcome in fewer words, for narrow tables."""
    match outcome:
        case OutOfMemory(where=where):
            excess = outcome.excess
            wanted = "" if excess is None else f", wanted {100 * (1 + excess):.0f} %"
            return f"out of {'' if where == 'device' else f'{where} '}memory{wanted}"
        case Refused(rule=rule):
            return f"refused: {rule}"
        case _:
            return outcome_words(outcome)


def record_words(record: Record, *, brief: bool = False) -> str:
    """How the trial ended, beside what was expected of it.

    A measurement has its speed beside it, `41.20 samples/s ± 1.5 % (forecast 39.8)`, and what
    ran out of memory the peak that was expected.
    """
    words = brief_outcome(record.outcome) if brief else outcome_words(record.outcome)
    if record.forecast is None:
        return words
    match record.outcome:
        case Measured():
            return f"{words} (forecast {rate(record.forecast.samples_per_second.value)})"
        case OutOfMemory(where="device"):
            return f"{words} (forecast {_peak_words(record.forecast)})"
        case _:
            return words


def forecast_words(forecast: PlanForecast, why: str) -> str:
    """What is expected, `39.8 samples/s, 0.310 GiB`; how likely it fits where that is not sure.

    Unless the reason for the trial says it, which knows what other trials showed beside.
    """
    told = LIKELY_TO_FIT in why
    peak = f"{gib(forecast.peak_bytes.value)} GiB" if told else _peak_words(forecast)
    return f"{rate(forecast.samples_per_second.value)} samples/s, {peak}"


def _peak_words(forecast: PlanForecast) -> str:
    peak = f"{gib(forecast.peak_bytes.value)} GiB"
    percent = round(100 * forecast.fits)
    return peak if percent == 100 else f"{peak}, fits with {percent} %"


def counts_words(counts: Mapping[str, int]) -> str:
    """How trials ended: `9 measured, 2 out of memory`."""
    order = [kind for kind in KIND_WORDS if counts.get(kind)]
    return ", ".join(f"{counts[kind]} {KIND_WORDS[kind]}" for kind in order)


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
    if all(getattr(plan, name) == DEFAULTS[name] for name in names):
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
        return "" if value == DEFAULTS[name] else word.format(str(value).replace("_", " "))

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


def validation_words(validation: Record, state: SweepState) -> str:
    """How a validation ended: `failed: why`, or `holds: 46 steps at 198.1 ± 1.1 samples/s, ...`."""
    outcome = validation.outcome
    if (reason := state.why_failed(validation)) is not None:
        return f"failed: {' '.join(reason.split())}"
    if not isinstance(outcome, Measured):
        return outcome_words(outcome)  # it was stopped
    memory, steps = outcome.memory, len(outcome.losses)
    told = f"{plural(steps, 'step')} at {spread(outcome.samples_per_second)} samples/s"
    told += f", peak {gib(memory.peak_bytes)} GiB, {100 * memory.share:.0f} % of the limit"
    if (done := outcome.validation) is not None:
        told += (
            f", with {done.worst_steps} steps of the longest samples, an evaluation of them and a"
            f" checkpoint of {gib(done.checkpoint_bytes)} GiB in {done.checkpoint_seconds:.1f} s"
        )
    return f"holds: {told}; {_losses(check_of(validation, state))}"


def check_of(validation: Record, state: SweepState) -> LossCheck | None:
    """The validation's losses beside the reference's."""
    before = [other.number for other in state.validations if other.ended_at < validation.ended_at]
    doubted = [number for number in before if number in state.failed_validations]
    return loss_check(validation, state.records, state.space.baseline, state.spec, doubted)


def _losses(check: LossCheck | None) -> str:
    if check is None:
        return "no other lossless plan was measured to hold its losses against"
    apart = f"{100 * check.apart:.2g} %" if check.apart else "a digit"
    return (
        f"losses within {apart} of those of trial {check.reference}"
        f" over {plural(check.steps, 'step')} ({100 * check.tolerance:g} % may be)"
    )


def validation_sentences(state: SweepState) -> Iterator[str]:
    """Sentences on the validation of the best plan, and on those that failed; none without one."""
    if state.best is None:
        return
    validation = state.validated
    failed = [each for each in state.validations if state.why_failed(each) is not None]
    if validation is not None:
        words = validation_words(validation, state)
        yield f"validated in workers of its own: the validation {words}"
    elif not state.spec.validation.enabled:
        yield "not validated: validation.enabled is false"
    elif state.to_validate is not None:
        yield "not validated yet: `plimsoll tune` validates the best plan when its search is over"
    else:
        yield f"not validated: {plural(len(failed), 'validation')} failed"
    for each in failed:
        yield f"the validation of trial {each.number} {validation_words(each, state)}"
