"""Verification of an exported folder: compares its run with the plan and its trial."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from math import isclose
from pathlib import Path
from statistics import fmean

from orchestrator.core.losses import loss_differences
from orchestrator.export.observed_run import ObservedRank
from orchestrator.report.format import spread
from search_spaces.plan import Plan
from search_spaces.settings.export_manifest import ExportManifest
from search_spaces.settings.observed_run import ObservedSettings, ObservedStep
from search_spaces.specification.sections import Base, TrainSpec
from search_spaces.trial import Estimate
from workers.measure.interval import mean_estimate
from workers.measure.steady import warmup_length

SLOWER = 0.10  # tolerated share below the record, for a few steps on a machine with other work
UNSTEADY_STEPS = 3  # lazy setup in the first, hooks in the second, their removal in the third
FEWEST_STEPS = UNSTEADY_STEPS + 2
LOSSES = "losses"  # the check without which nothing is verified
SPEED = "samples/s"
_WEIGHT_DIGITS, _SAME_RATE = 3, 1e-4  # the rest is rounding
_ADAM = {"betas": (0.9, 0.999), "eps": 1e-8}
_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
# class, and the rates of torch, DeepSpeed and transformers where the specification has none
_OPTIMIZERS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "adamw_fused": ("AdamW fused", _ADAM),
    "adamw_foreach": ("AdamW foreach", _ADAM),
    "adamw_8bit": ("AdamW8bit", _ADAM),
    "adamw_8bit_paged": ("PagedAdamW8bit", _ADAM),
    "adafactor": ("Adafactor", {}),
    "sgd": ("SGD foreach", {"momentum": 0.0}),
    "lion": ("Lion", {"betas": (0.9, 0.99)}),
    "muon": ("Muon", {"momentum": 0.95}),  # its step is observed, not that of AdamW after it
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check of a run. `passed` is None if it was not checked, for a `reason` if it is known."""

    check: str
    expected: str
    observed: str
    passed: bool | None
    reason: str = ""


def changed_files(manifest: ExportManifest, folder: Path) -> tuple[str, ...]:
    """Returns the names of exported files that were changed or removed since the export."""
    return tuple(
        name
        for name, digest in manifest.files
        if not (file := folder / name).is_file() or sha256(file.read_bytes()).hexdigest() != digest
    )


def check_run(
    manifest: ExportManifest,
    ranks: Sequence[ObservedRank],
    changed: Sequence[str] = (),
    *,
    settings_only: bool = False,
) -> tuple[Finding, ...]:
    """Compares settings, losses and speed of a run, of at least one rank, to the plan's trial.

    No losses are compared if the user changed files: the data may differ then.
    """
    reason = _not_compared(manifest, changed, settings_only)
    return (
        *_settings(manifest, ranks),
        *_update(manifest, ranks),
        _losses(manifest, ranks, reason),
        _speed(manifest, ranks[0]),
    )


def _settings(manifest: ExportManifest, ranks: Sequence[ObservedRank]) -> Iterator[Finding]:
    plan, observed = manifest.plan, ranks[0].settings
    yield equal("ranks", plan.world_size, len(ranks))
    on_torch = "fsdp2" if plan.zero_stage else "ddp" if plan.data > 1 else "none"
    wrapper = "deepspeed" if plan.engine == "deepspeed" else on_torch
    yield equal("wrapper", wrapper, observed.wrapper)
    yield equal("ZeRO stage", plan.zero_stage, observed.zero_stage)
    if plan.engine == "torch" and plan.zero_stage:
        yield equal("replicas", plan.replicas, observed.replicas)
        wrapped = any(count == manifest.blocks for _, count in observed.wrapped)
        units = f"{manifest.blocks} blocks, and the rest"
        yield _finding("FSDP units", units, _count(observed.wrapped)[1], wrapped)
    yield equal("parameter offload", plan.offload_parameters, observed.offload_parameters)
    if plan.engine == "deepspeed":
        yield equal("optimizer offload", plan.offload_optimizer, observed.offload_optimizer)
    passes, _ = Counter(step.passes for step in ranks[0].steps).most_common(1)[0]
    yield from _batches(plan, observed, passes)
    yield _recomputed(manifest, observed.recomputed)
    yield equal("compiled", plan.compile, observed.compiled > 0)
    yield equal("compute dtype", _DTYPES[plan.precision], observed.compute)
    if manifest.base is not None:
        yield equal("frozen weights", _frozen(manifest.base, plan), ", ".join(observed.frozen))
    if observed.attention is not None:
        yield equal("attention", plan.attention, observed.attention)
    on_host = plan.engine == "deepspeed" and plan.offload_optimizer != "none"
    optimizer = "DeepSpeedCPUAdam" if on_host else _OPTIMIZERS[plan.optimizer][0]
    yield equal("optimizer", optimizer, observed.optimizer)


def _batches(plan: Plan, observed: ObservedSettings, passes: int) -> Iterator[Finding]:
    micro_batch, rows, by_tokens = plan.micro_batch, observed.rows, plan.micro_batch_tokens > 0
    if plan.batching == "packed":
        samples = f"{micro_batch}, packed"
        yield _finding("micro-batch", samples, "packed samples cannot be counted", None)
    elif by_tokens:
        fewer = None if rows is None else rows <= micro_batch
        yield _finding("micro-batch", f"{micro_batch} or fewer, by tokens", rows, fewer)
    else:
        yield equal("micro-batch", micro_batch, rows)
    if (multiple := plan.pad_multiple) > 1:
        fits = None if observed.columns is None else observed.columns % multiple == 0
        yield _finding("row width", f"a multiple of {multiple} tokens", observed.columns, fits)
    if plan.batching == "packed" and passes < plan.accumulation:
        yield _finding("accumulation", f"{plan.accumulation} or fewer, packed", passes, True)
    elif by_tokens:
        most = passes >= plan.accumulation
        yield _finding("accumulation", f"{plan.accumulation} or more, by tokens", passes, most)
    else:
        yield equal("accumulation", plan.accumulation, passes)


def _recomputed(manifest: ExportManifest, classes: Sequence[tuple[str, int]]) -> Finding:
    planned, (count, words) = manifest.recomputed_blocks, _count(classes)
    # blocks that no gradient reaches are not run again, as the last one of CLIP in LLaVA
    if manifest.unused_weights and 0 < count < planned:
        return _finding("recomputed blocks", f"up to {planned}", words, True)
    return equal("recomputed blocks", planned, count, words)


def _update(manifest: ExportManifest, ranks: Sequence[ObservedRank]) -> Iterator[Finding]:
    """Compares what becomes of a gradient: its scale, its clipping and the optimizer's step."""
    train, observed = manifest.train, ranks[0].settings
    known = [weight for rank in ranks if (weight := rank.settings.loss_weight) is not None]
    is_known = len(known) == len(ranks) and not _scales_losses(manifest.plan)
    yield equal("loss weight", 1.0, round(fmean(known), _WEIGHT_DIGITS) if is_known else None)
    yield equal("gradient clipping", train.grad_clip or "none", observed.clip or "none")
    yield _rate(train, ranks[0].steps)
    others = set(observed.decays) - {train.weight_decay, 0.0 if train.decay == "stock" else None}
    yield equal("weight decay", train.weight_decay, max(others or observed.decays, default=None))
    for name, usual in _OPTIMIZERS[manifest.plan.optimizer][1].items():
        expected = usual if (own := getattr(train, name)) is None else own
        values = {value for rate, value in observed.rates if rate == name}
        yield equal(name, expected, next(iter(values - {expected} or values), None))


def _rate(train: TrainSpec, steps: Sequence[ObservedStep]) -> Finding:
    from workers.plain_torch.update import rate_factor  # imports torch, which is slow

    schedule = {"warmup_steps": train.warmup_steps, "total_steps": train.total_steps}
    expected = [
        train.learning_rate * rate_factor(number, shape=train.schedule, **schedule)
        for number in range(len(steps))
    ]
    differing = [
        f"{step.rate:g} in step {number}, not {rate:g}"
        for number, (step, rate) in enumerate(zip(steps, expected, strict=True))
        if not isclose(step.rate, rate, rel_tol=_SAME_RATE, abs_tol=_SAME_RATE * max(expected))
    ]
    observed = differing[0] if differing else f"the same in {len(steps)} steps"
    rate = f"{train.learning_rate:g}, {train.schedule}"
    return _finding("learning rate", rate, observed, not differing)


def equal(what: str, expected: object, observed: object, words: str = "") -> Finding:
    """Returns whether two values are equal, in `words` for the observed one; None is unknown."""
    return _finding(
        what, expected, words or observed, None if observed is None else expected == observed
    )


def _finding(
    check: str, expected: object, observed: object, passed: bool | None, reason: str = ""
) -> Finding:
    return Finding(
        check=check,
        expected=_word(expected),
        observed=_word(observed),
        passed=passed,
        reason=reason,
    )


def _word(value: object) -> str:
    if value is None:
        return "not observed"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _frozen(base: Base, plan: Plan) -> str:
    others = plan.precision if plan.engine == "deepspeed" else "fp32" if base == "fp32" else "bf16"
    return _DTYPES[others] + {"int8": ", int8", "nf4": ", uint8"}.get(base, "")


def _count(classes: Sequence[tuple[str, int]]) -> tuple[int, str]:
    return sum(count for _, count in classes), ", ".join(f"{n} {name}" for name, n in classes)


def observed_losses(ranks: Sequence[ObservedRank]) -> list[float]:
    """Returns the loss of each step, averaged over ranks as its gradient is.

    Empty if a step has no loss.
    """
    steps = zip(*(rank.steps for rank in ranks), strict=False)
    losses = [[one.loss for one in step if one.loss is not None] for step in steps]
    return [fmean(of_ranks) for of_ranks in losses] if all(losses) else []


def _losses(manifest: ExportManifest, ranks: Sequence[ObservedRank], not_compared: str) -> Finding:
    losses = observed_losses(ranks)[1:]  # the first step takes the longest samples
    differences = loss_differences(losses, manifest.losses)
    steps, difference = len(differences), max(differences, default=0.0)
    reason = not_compared or ("" if steps else "none were observed")
    apart = f"{100 * difference:.2g} % apart in {steps} steps"
    expected = f"within {100 * manifest.loss_tolerance:g} % of the trial's"
    if reason:
        return _finding(LOSSES, expected, f"not compared: {reason}", None, reason)
    return _finding(LOSSES, expected, apart, difference <= manifest.loss_tolerance)


def _not_compared(manifest: ExportManifest, changed: Sequence[str], settings_only: bool) -> str:
    if settings_only:
        return "settings only"
    if changed:
        return f"{' and '.join(changed)} {'was' if len(changed) == 1 else 'were'} changed"
    return "DeepSpeed scales them itself" if _scales_losses(manifest.plan) else ""


def _scales_losses(plan: Plan) -> bool:
    return plan.precision == "fp16" and plan.engine == "deepspeed"


def _speed(manifest: ExportManifest, rank: ObservedRank) -> Finding:
    speed = observed_speed(manifest.plan, rank)
    return speed_finding(manifest.samples_per_second, speed, spread(manifest.samples_per_second))


def speed_finding(trial: Estimate, folder: Estimate | None, expected: str) -> Finding:
    """Compares the folder's samples per second with its plan's trial; None: too few steps."""
    if folder is None:
        return _finding(SPEED, expected, "too few steps", None)
    ratio = folder.value / trial.value
    is_fast = ratio >= 1 - SLOWER or folder.overlaps(trial)
    return _finding(SPEED, expected, f"{spread(folder)}: {100 * ratio:.0f} %", is_fast)


def observed_speed(plan: Plan, rank: ObservedRank) -> Estimate | None:
    """Returns samples per second, from the mean of steady steps; None if there are too few."""
    times = [step.at for step in rank.steps[UNSTEADY_STEPS - 1 :]]
    seconds = [later - earlier for earlier, later in pairwise(times)]
    if len(seconds) < FEWEST_STEPS - UNSTEADY_STEPS:
        return None
    return mean_estimate(seconds[warmup_length(seconds) :]).rate_of(plan.global_batch)
