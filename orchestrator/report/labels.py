"""Labels of plans, outcomes, records and validations, the same in every report."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from orchestrator.core.fingerprints import alike, differing
from orchestrator.core.losses import LossCheck, LossTolerance, loss_check
from orchestrator.core.objective import Violation, is_measured, thrashes
from orchestrator.core.reasons import Promising, TrialReason
from orchestrator.core.records import Record
from orchestrator.core.state import SweepState
from orchestrator.core.validation import ValidationFailure
from orchestrator.report.format import gib, plural, significant, spread
from orchestrator.report.reasons import difference_words, outcome_sentence
from search_spaces.facts import LossDependence, share_words
from search_spaces.knobs.knob import Knob
from search_spaces.knobs.registry import KNOBS, lossy_knobs
from search_spaces.plan import DEFAULTS, Plan
from search_spaces.safety.files import packaged_table
from search_spaces.space import Space
from search_spaces.specification.schema import SweepSpec
from search_spaces.specification.sections import Metric
from search_spaces.trial import Activity, ActivityKind, Measured, Outcome, OutOfMemory, PlanForecast

_TEXTS = packaged_table(__package__, "words.yaml")
METRIC_WORDS: Mapping[Metric, str] = _TEXTS["metrics"]
_KINDS = "measured out_of_memory timed_out crashed refused diverged does_not_train cancelled"
KIND_WORDS: Mapping[str, str] = {kind: kind.replace("_", " ") for kind in _KINDS.split()}
_LOSSY_WORDS: dict[str, Callable[[Plan], str]] = {
    "micro_batch": lambda plan: f"micro-batch {plan.micro_batch}",
    "precision": lambda plan: plan.precision,
    "optimizer": lambda plan: plan.optimizer.replace("_", " "),
    "float8": lambda plan: f"float8 {plan.float8}",
    "states": lambda plan: f"{plan.states.replace('_', ' ')} states",
}


def activity_words(activity: Activity) -> str:
    """Describes what a sweep does: "trial 3: measuring, step 7 of at most 50, 31.2 ± 0.9 ..."."""
    kind, count, most = activity.kind, activity.count, activity.most
    words: str = _TEXTS["activities"].get(kind.value, kind.value.replace("_", " "))
    if activity.trial is None:
        if count is None or most is None:
            return words
        done = "up" if kind is ActivityKind.STARTING_WORKERS else "ready"
        return f"{words} {plural(most, 'worker')} ({count} {done})"
    if count is not None:
        words += f", step {count} of at most {most}"
    if activity.samples_per_second is not None:
        words += f", {spread(activity.samples_per_second)} samples/s"
    return f"{'validation of ' * activity.validation}trial {activity.trial}: {words}"


def outcome_words(outcome: Outcome) -> str:
    """Describes an outcome on one line; labels one that thrashes or ran at lowered clocks."""
    words = " ".join(outcome_sentence(outcome).split())  # the reason of a crash may span lines
    if not isinstance(outcome, Measured):
        return words
    if thrashes(outcome.memory):
        retries = plural(outcome.memory.allocator_retries, "time")
        words += f" (thrashes: the allocator retried {retries})"
    if outcome.conditions.throttled:
        words += f" (throttled: {', '.join(outcome.conditions.throttled)})"
    return words


def record_words(record: Record) -> str:
    """Describes how a trial ended, with its forecast in brackets.

    A measurement shows the forecast speed, `41.20 samples/s ± 1.5 % (forecast 39.8)`; a trial
    that ran out of memory shows the forecast peak.
    """
    words = outcome_words(record.outcome)
    if record.forecast is None:
        return words
    match record.outcome:
        case Measured():
            return f"{words} (forecast {significant(record.forecast.samples_per_second.value)})"
        case OutOfMemory(where="device"):
            return f"{words} (forecast {_peak_words(record.forecast)})"
        case _:
            return words


def forecast_words(forecast: PlanForecast, reason: TrialReason) -> str:
    """Describes a forecast: `39.8 samples/s, 0.310 GiB, 93 % likely to fit`.

    The forecast's probability is left out if it is 100 %, or if the reason for the trial has one,
    which also accounts for what other trials showed.
    """
    promising = isinstance(reason, Promising)
    peak = f"{gib(forecast.peak_bytes.value)} GiB" if promising else _peak_words(forecast)
    return f"{significant(forecast.samples_per_second.value)} samples/s, {peak}"


def _peak_words(forecast: PlanForecast) -> str:
    peak = f"{gib(forecast.peak_bytes.value)} GiB"
    percent = round(100 * forecast.fits)
    return peak if percent == 100 else f"{peak}, {percent} % likely to fit"


def counts_words(counts: Mapping[str, int]) -> str:
    """Counts trials by outcome: `9 measured, 2 out of memory`."""
    order = [kind for kind in KIND_WORDS if counts.get(kind)]
    return ", ".join(f"{counts[kind]} {KIND_WORDS[kind]}" for kind in order)


def plan_words(plan: Plan, *, omit: Collection[str] = ()) -> str:
    """Returns the short name of a plan: `ddp micro 4 x 4 ckpt 50 % sdpa packed fp32`.

    Args:
        plan: The plan. Most knobs have no word at their default; `micro 4 x 4` is micro-batch
            times accumulation.
        omit: Names of knobs to leave out, because all plans listed together share their value.
    """
    words = (word_of(plan) for names, word_of in _WORDS if not set(names) <= set(omit))
    return " ".join(word for word in words if word)


def fixed_knobs(space: Space) -> frozenset[str]:
    """Names of the knobs with a single value in the whole space, without micro_batch."""
    fixed = {name for name, values in space.domains if len(values) == 1}
    return frozenset(fixed - {"micro_batch"})


def fixed_words(space: Space) -> str:
    """Returns the words that all plans of the space share, `sdpa fp32`, or an empty text."""
    fixed = fixed_knobs(space)
    words = (word_of(space.baseline) for names, word_of in _WORDS if set(names) <= fixed)
    return " ".join(word for word in words if word)


def lossy_words(plan: Plan, spec: SweepSpec) -> str:
    """Names the lossy settings of a plan, `bf16`; empty if it trains the numerics of the spec."""
    return " ".join(_LOSSY_WORDS[name](plan) for name in lossy_knobs(plan, spec))


def lossy_suffix(plan: Plan, lossy: Sequence[str]) -> str:
    """Formats the values of a plan's lossy knobs as a suffix for its name."""
    values = " ".join(_LOSSY_WORDS[name](plan) for name in lossy)
    return f" (lossy: {values})" if lossy else ""


def labelled_plan(plan: Plan, spec: SweepSpec, *, omit: Collection[str] = ()) -> str:
    """Returns the short name of a plan, with a label if it is lossy."""
    return plan_words(plan, omit=omit) + lossy_suffix(plan, lossy_knobs(plan, spec))


def may_be_lossy(space: Space, spec: SweepSpec) -> bool:
    """Returns true if the space has a lossy value."""
    domains = dict(space.domains)
    return any(knob.lossy(value, spec) for knob in KNOBS for value in domains.get(knob.name, ()))


def strategy(plan: Plan) -> str:
    """Names the data-parallel strategy: `ddp`, `hsdp zero3 2 x 4`, `deepspeed zero2`."""
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


def _checkpointing(plan: Plan) -> str:
    if not plan.checkpoint_ratio:
        return ""
    mode = " selective" if plan.checkpoint_mode == "selective" else ""
    where = " on host" if plan.checkpoint_offload else ""
    counts = {"selective": plan.selective_blocks, "on host": plan.offloaded_blocks}
    some = " + ".join(f"{count} {word}" for word, count in counts.items() if count)
    return f"ckpt {100 * plan.checkpoint_ratio:.0f} %{mode}{where}{some and f' ({some})'}"


_CHECKPOINT_KNOBS = (
    *("checkpoint_ratio", "checkpoint_mode", "checkpoint_offload"),
    *("selective_blocks", "offloaded_blocks"),
)


def _labelled(knob: Knob) -> tuple[tuple[str, ...], Callable[[Plan], str]]:
    """Makes an entry of `_WORDS` from a knob's label."""

    def word_of(plan: Plan) -> str:
        value = getattr(plan, knob.name)
        if value == DEFAULTS[knob.name]:
            return ""
        return knob.label.format(str(value).replace("_", " "))

    return (knob.name,), word_of


_LABELLED = {knob.name: _labelled(knob) for knob in KNOBS if knob.label}

# `data` has no word: the global batch is fixed, so the number of data ranks follows from
# micro-batch and accumulation.
_WORDS: tuple[tuple[tuple[str, ...], Callable[[Plan], str]], ...] = (
    (("engine", "zero_stage", "replicas"), strategy),
    (("offload_optimizer", "offload_parameters"), _offload),
    _LABELLED.pop("pin_memory"),
    (("tensor", "sequence_parallel"), _tensor),
    (("pipeline", "pipeline_schedule"), _pipeline),
    (("micro_batch",), lambda plan: f"micro {plan.micro_batch} x {plan.accumulation}"),
    (_CHECKPOINT_KNOBS, _checkpointing),
    (("attention",), lambda plan: plan.attention.replace("_attention_", "")),
    (("batching",), lambda plan: plan.batching),
    (("precision",), lambda plan: plan.precision),
    *_LABELLED.values(),
)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def violation_words(violation: Violation) -> str:
    """Describes a constraint that a plan violates."""
    metric, value, bound = violation.metric, violation.value, violation.bound
    if metric == "allocator_retries":
        share = 100 * (violation.reserved_share or 0.0)
        return (
            f"it thrashes: with {share:.0f} % of the limit reserved, the allocator emptied its"
            f" cache and retried {value:g} times in the measured steps"
        )
    if metric == "memory_gib":
        return f"its peak is {value:.3f} GiB, above the {bound:.3f} GiB of objective.memory_gib"
    if value is None:
        return f"its {METRIC_WORDS[metric]} are unknown, and at least {_short(bound)} are required"
    if metric == "headroom":
        return (
            f"its peak of {100 * (1 - value):.1f} % of the limit leaves less than"
            f" {100 * bound:g} % free"
        )
    return f"it reaches {_short(value)} {METRIC_WORDS[metric]}, below the required {_short(bound)}"


def failure_words(failure: ValidationFailure) -> str:
    """Describes why a validation failed."""
    if failure.violation is not None:
        return violation_words(failure.violation)
    if failure.gradient is not None:
        trial, share = failure.gradient
        return f"the norm of its first gradient is {100 * share:.2g} % off that of trial {trial}"
    if (check := failure.check) is not None:
        return (
            f"its losses differ by up to {100 * check.difference:.2g} % from those of trial"
            f" {check.reference} over the first {plural(check.steps, 'step')}"
            f" ({_tolerance_words(check.tolerance)}, first exceeded in step {check.first_step});"
            f" {_cause_words(check)}"
        )
    return " ".join(outcome_sentence(failure.outcome).split())


def _tolerance_words(tolerance: LossTolerance) -> str:
    basis: str = _TEXTS["tolerance_bases"][tolerance.basis].format(
        repeat=tolerance.repeat, percent=f"{100 * (tolerance.rounding or 0.0):.2g} %"
    )
    return f"tolerance {100 * tolerance.share:.2g} % {basis}"


def _cause_words(check: LossCheck) -> str:
    if check.probed is not None:
        return f"the probe of the model shows why: {dependence_words(check.probed)}"
    if check.unstable is not None:
        return (
            f"two runs of the plan of trial {check.unstable} already differ by more than that, so"
            " the knobs need not be the cause: does the model or its data draw random numbers that"
            " train.seed does not set?"
        )
    knobs = [name for name in check.changes if name != "accumulation"]  # it follows from others
    return f"the plans differ in {', '.join(knobs)}"


def dependence_words(found: LossDependence) -> str:
    """Describes what the probe of a model found, with its number."""
    words: str = _TEXTS["dependences"][found.on]
    return words.format(share=share_words(found.share))


def validation_words(validation: Record, state: SweepState) -> str:
    """Describes a validation: `failed: ...` or `passed: 46 steps at 198.1 ± 1.1 samples/s, ...`."""
    outcome = validation.outcome
    if (reason := state.failed_validations.get(validation.number)) is not None:
        return f"failed: {failure_words(reason)}"
    if not isinstance(outcome, Measured):
        return outcome_words(outcome)  # cancelled, which is not a failure
    memory, steps = outcome.memory, len(outcome.losses)
    words = (
        f"passed: {plural(steps, 'step')} at {spread(outcome.samples_per_second)} samples/s, peak"
        f" {gib(memory.peak_bytes)} GiB, {100 * memory.share:.0f} % of the limit"
    )
    if (extra := outcome.validation) is not None:
        words += (
            f"; it included {plural(extra.worst_steps, 'step')} on the longest samples, an"
            f" evaluation on them and a checkpoint of {gib(extra.checkpoint_bytes)} GiB in"
            f" {extra.checkpoint_seconds:.1f} s"
        )
    return f"{words}; {_losses(check_of(validation, state))}"


def check_of(validation: Record, state: SweepState) -> LossCheck | None:
    """Compares the losses of a validation with those of its reference trial.

    Trials whose own validation had failed by then are no references.
    """
    earlier = [other.number for other in state.validations if other.ended_at < validation.ended_at]
    failed = [number for number in earlier if number in state.failed_validations]
    return loss_check(validation, state.records, state.space.baseline, state.spec, failed)


def _losses(check: LossCheck | None) -> str:
    if check is None:
        return "losses not compared: no other lossless plan was measured"
    match = f"within {100 * check.difference:.2g} %" if check.difference else "exactly"
    return (
        f"losses match trial {check.reference} {match} over {plural(check.steps, 'step')}"
        f" ({_tolerance_words(check.tolerance)})"
    )


def fingerprint_sentence(state: SweepState) -> str:
    """Reports trials with another fingerprint than the last; empty if all have the same."""
    here = state.last_fingerprint
    others, changes = differing(state.records, here) if here else ((), ())
    if not others:
        return ""
    measured = filter(is_measured, (*state.records, *state.validations))
    plans = {record.plan for record in alike(measured, here)}
    is_elsewhere = state.best is not None and state.best.plan not in plans
    elsewhere = "; the best plan was measured only there" if is_elsewhere else ""
    return (
        f"{len(others)} of {plural(len(state.records), 'trial')} ran on other hardware or software"
        f" than the last ({difference_words(changes)}){elsewhere}"
    )


def validation_sentences(state: SweepState) -> Iterator[str]:
    """Yields sentences on the validation of the best plan and on each one that failed."""
    if state.best is None:
        return
    validation = state.validated
    failed = [each for each in state.validations if each.number in state.failed_validations]
    if validation is not None:
        yield f"validation in a fresh worker group {validation_words(validation, state)}"
    elif not state.spec.validation.enabled:
        yield "not validated: validation.enabled is false"
    elif state.next_to_validate is not None:
        yield "not validated yet: `plimsoll tune` validates the best plan after the search"
    else:
        yield f"not validated: {plural(len(failed), 'validation')} failed"
    for each in failed:
        yield f"the validation of trial {each.number} {validation_words(each, state)}"
