"""Verification of an exported folder: runs its command with a recorder in each process."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from math import isclose
from pathlib import Path
from statistics import fmean

import workers.run_recorder
from orchestrator.core.losses import loss_differences
from orchestrator.export.scripts import start_environment
from orchestrator.report.format import spread
from search_spaces.errors import UserError
from search_spaces.plan import Plan
from search_spaces.safety.files import write_durably
from search_spaces.settings.export_manifest import EXPORTED_FILE, ExportManifest
from search_spaces.settings.observed_run import (
    FAILURE,
    FOLDER_VARIABLE,
    OBSERVED,
    ObservedSettings,
    ObservedStep,
)
from search_spaces.specification.sections import Base, TrainSpec
from search_spaces.trial import Estimate
from workers.measure.interval import mean_estimate
from workers.measure.steady import warmup_length

_SITE = Path(workers.run_recorder.__file__).parent / "site"
_STOP_SECONDS = 10.0  # between a signal and the next stronger one
LOG_NAME = "verify.log"  # output of a failed run, in the exported folder
# log lines of torchrun, which accelerate uses too; the line of a failed rank precedes the summary
# (torch/distributed/elastic/multiprocessing/api.py)
_TORCHRUN = re.compile(r"^[A-Z]\d{4} .*torch/distributed/")
_LAUNCHER_ERROR = "subprocess.CalledProcessError"  # accelerate's own error if its one rank fails
_AGENT = re.compile(
    r"^E\d{4} .*torch/distributed/elastic/.*failed \(exitcode: (-?\d+)\) local_rank: (\d+)"
)
SLOWER = 0.10  # tolerated share below the record, for a few steps on a machine with other work
UNSTEADY_STEPS = 3  # lazy setup in the first, hooks in the second, their removal in the third
FEWEST_STEPS = UNSTEADY_STEPS + 2
# how formats that train on one machine start their files
_FILE = r"([A-Za-z]\w*\.(?:py|yaml))"
_COMMANDS = (
    re.compile(rf"python {_FILE}"),
    re.compile(rf"torchrun --nproc-per-node \d+ {_FILE}"),
    re.compile(rf"accelerate launch --config_file {_FILE} {_FILE}"),
)
LOSSES = "losses"  # the check without which nothing is verified
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
class ObservedRank:
    """Settings and steps that the recorder of a rank observed."""

    settings: ObservedSettings
    steps: tuple[ObservedStep, ...]


def observed_run(
    manifest: ExportManifest, folder: Path, *, steps: int, seconds: float
) -> tuple[ObservedRank, ...]:
    """Runs a folder for some optimizer steps, and returns the observations of its ranks.

    The processes use this Python's environment, and have ended when this returns.

    Args:
        manifest: The manifest of the folder.
        folder: The exported folder.
        steps: Optimizer steps to run.
        seconds: Time limit.

    Returns:
        Observations in the order of ranks.

    Raises:
        UserError: If the command cannot start, fails, takes longer than `seconds`, or trains
            where no recorder runs.
    """
    if not manifest.local:
        raise UserError(
            f"{folder}: `{manifest.command}` does not train on this machine, and verify can only"
            " observe local processes; export the plan in another format to verify it"
        )
    with tempfile.TemporaryDirectory(prefix="plimsoll-") as temporary:
        failure = _run(manifest, folder, steps, seconds, Path(temporary))
        if failure:
            log = _keep_log(Path(temporary, "log"), folder)
            cause = first_failure(Path(temporary)) or "no output"
            raise UserError(
                f"{folder}: `{manifest.command}` {failure}: {cause} (the whole output is in {log})"
            )
        with contextlib.suppress(OSError):
            (folder / LOG_NAME).unlink(missing_ok=True)  # of an earlier run that failed
        ranks = sorted(ranks_in(Path(temporary)), key=lambda rank: rank.settings.rank)
    if not ranks:
        raise UserError(
            f"{folder}: `{manifest.command}` succeeded, but no process took two optimizer steps:"
            " it must train on this machine, with Plimsoll installed"
        )
    return tuple(ranks)


def _run(
    manifest: ExportManifest, folder: Path, steps: int, seconds: float, temporary: Path
) -> str:
    """Runs the command; returns how it failed, or an empty string."""
    command = [*start_words(manifest), "--steps", str(steps)]
    with Path(temporary, "log").open("wb") as output:
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment_of(manifest, temporary),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise UserError(f"{folder}: `{command[0]}` cannot start: {error.strerror}") from None
        try:
            code = process.wait(seconds)
            return f"failed with exit code {code}" if code else ""
        except subprocess.TimeoutExpired:
            return f"took longer than {seconds:.0f} s"
        finally:
            _stop(process)


def start_words(manifest: ExportManifest) -> list[str]:
    """Returns the words of a manifest's command, if it starts a file of the folder as exports do.

    The manifest may come from anybody, and `plimsoll verify` runs no more than the folder's script.

    Raises:
        UserError: If it is another command.
    """
    exported = {name for name, _ in manifest.files}
    words = manifest.command.split()
    for form in _COMMANDS:
        matched = form.fullmatch(manifest.command)
        if matched is not None and exported.issuperset(matched.groups()):
            return words
    raise UserError(
        f"the command `{manifest.command}` in {EXPORTED_FILE} is not run: plimsoll export starts"
        " files of the folder with python, torchrun or accelerate launch"
    )


def _keep_log(log: Path, folder: Path) -> Path:
    try:
        write_durably(folder / LOG_NAME, log.read_bytes())
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="plimsoll-verify-"))
        write_durably(folder / LOG_NAME, log.read_bytes())
    return folder / LOG_NAME


def first_failure(folder: Path) -> str:
    """Returns the first error of a run in one line; empty if there was no output.

    It is the earliest exception that a recorder saw. If there is none, it is the signal that ended
    a rank, or the last line before those of the launcher.

    Args:
        folder: Folder with the log and the files of the recorders.
    """
    files = folder.glob("*.failed")
    failures = [FAILURE.validate_json(file.read_bytes()) for file in files]
    if failures:
        first = min(failures, key=lambda failure: failure.at)
        where = f" ({first.where})" if first.where else ""
        return f"rank {first.rank} failed with {first.error}{where}"
    lines: list[str] = []
    for line in Path(folder, "log").read_text(encoding="utf-8", errors="replace").splitlines():
        if agent := _AGENT.match(line):
            code, rank = int(agent[1]), agent[2]
            if code < 0:
                name = signal.Signals(-code).name
                killer = ", as by the OOM killer" if name == "SIGKILL" else ""
                return f"rank {rank} was killed by {name}{killer}"
            break
        if not _TORCHRUN.match(line):
            lines.append(line.strip())
    if lines and lines[-1].startswith(_LAUNCHER_ERROR):
        lines = lines[: max(n for n, line in enumerate(lines) if line.startswith("Traceback"))]
    return next((line for line in reversed(lines) if line), "")


def environment_of(manifest: ExportManifest, folder: Path) -> dict[str, str]:
    """Returns the environment of a run: this process's and the plan's, with the recorder.

    Variables that the manifest names are for people: they may name any library to load.

    This Python's programs come first on `PATH`, and the recorder first on `PYTHONPATH`.

    Args:
        manifest: The manifest of the exported folder.
        folder: Temporary folder for the files of the recorders and of torchrun.
    """
    modules = [str(_SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
    programs = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    return {
        **os.environ,
        "PET_LOG_DIR": str(folder),  # torchrun's --log-dir
        **dict(start_environment(manifest.plan, manifest.device)),
        "PATH": os.pathsep.join(programs),
        "PYTHONPATH": os.pathsep.join(modules),
        FOLDER_VARIABLE: str(folder),
    }


def _stop(process: subprocess.Popen[bytes]) -> None:
    for signum in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)


def ranks_in(folder: Path) -> Iterator[ObservedRank]:
    """Yields the observations in a folder, of ranks that took two steps."""
    for file in sorted(folder.glob("*.jsonl")):
        # a killed process may leave an incomplete line
        lines = [line for line in file.read_bytes().splitlines(keepends=True) if line[-1:] == b"\n"]
        observations = [OBSERVED.validate_json(line) for line in lines]
        settings = [item for item in observations if isinstance(item, ObservedSettings)]
        if settings:
            steps = tuple(item for item in observations if isinstance(item, ObservedStep))
            yield ObservedRank(settings=settings[0], steps=steps)


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
    record, speed = manifest.samples_per_second, observed_speed(manifest.plan, rank)
    if speed is None:
        return _finding("samples/s", spread(record), "too few steps", None)
    ratio = speed.value / record.value
    is_fast = ratio >= 1 - SLOWER or speed.overlaps(record)
    return _finding("samples/s", spread(record), f"{spread(speed)}: {100 * ratio:.0f} %", is_fast)


def observed_speed(plan: Plan, rank: ObservedRank) -> Estimate | None:
    """Returns samples per second, from the mean of steady steps; None if there are too few."""
    times = [step.at for step in rank.steps[UNSTEADY_STEPS - 1 :]]
    seconds = [later - earlier for earlier, later in pairwise(times)]
    if len(seconds) < FEWEST_STEPS - UNSTEADY_STEPS:
        return None
    return mean_estimate(seconds[warmup_length(seconds) :]).rate_of(plan.global_batch)
