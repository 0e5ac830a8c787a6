"""The command of an exported folder, run with a witness in each of its processes."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import workers.run_recorder
from orchestrator.core.validation import loss_difference
from orchestrator.report.format import spread
from search_spaces.errors import UserError
from search_spaces.plan import Plan
from search_spaces.settings.export_manifest import ExportManifest
from search_spaces.settings.observed_run import (
    FAILURE,
    FOLDER_VARIABLE,
    OBSERVED,
    ObservedFailure,
    ObservedSettings,
    ObservedStep,
)
from search_spaces.trial import Estimate
from workers.measure.steady import median_estimate, warmup_length

_SITE = Path(workers.run_recorder.__file__).parent / "site"
_PATIENCE_SECONDS = 10.0  # for processes that are told to end
LOG_NAME = "verify.log"  # in the exported folder, of a run that failed
# lines of torchrun, which accelerate starts too; that of a failed rank precedes its closing table
# (torch/distributed/elastic/multiprocessing/api.py)
_TORCHRUN = re.compile(r"^[A-Z]\d{4} .*torch/distributed/")
_LAUNCHER_ERROR = "subprocess.CalledProcessError"  # how accelerate ends where it starts one rank
_AGENT = re.compile(
    r"^E\d{4} .*torch/distributed/elastic/.*failed \(exitcode: (-?\d+)\) local_rank: (\d+)"
)
SLOWER = 0.10  # than the record, which a run of a few steps beside other work may be
UNSTEADY_STEPS = 3  # lazy set-up in the first, hooks in the second, their end in the third
FEWEST_STEPS = UNSTEADY_STEPS + 2
_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_OPTIMIZERS = {
    "adamw_fused": "AdamW fused",
    "adamw_foreach": "AdamW foreach",
    "adamw_8bit": "AdamW8bit",
    "adafactor": "Adafactor",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRank:
    """What the witness of a rank wrote down."""

    settings: ObservedSettings
    steps: tuple[ObservedStep, ...]


def observed_run(
    exported: ExportManifest, folder: Path, *, steps: int, seconds: float
) -> tuple[ObservedRank, ...]:
    """Runs a folder for some optimizer steps; what was seen of each rank, in their order.

    The processes are those of this Python's environment, and have ended when this returns.

    Raises:
        UserError: If the command cannot be started, fails, takes longer than `seconds`, or trains
            where nobody could look.
    """
    if not exported.local:
        raise UserError(
            f"{folder}: `{exported.command}` starts nothing on this machine alone, and only here"
            " can it be looked at; export the plan in another format to verify it"
        )
    with tempfile.TemporaryDirectory(prefix="plimsoll-") as kept:
        ended = _run(exported, folder, steps, seconds, Path(kept))
        if ended:
            log = _keep_log(Path(kept, "log"), folder)
            cause = first_failure(Path(kept)) or "it said nothing"
            raise UserError(
                f"{folder}: `{exported.command}` {ended}: {cause} (the whole output is in {log})"
            )
        with contextlib.suppress(OSError):
            (folder / LOG_NAME).unlink(missing_ok=True)  # of a run that failed before
        found = sorted(ranks_in(Path(kept)), key=lambda rank: rank.settings.rank)
    if not found:
        raise UserError(
            f"{folder}: `{exported.command}` ended well, but no process was seen to take two"
            " optimizer steps: it has to train on this machine, where Plimsoll is installed"
        )
    return tuple(found)


def _run(exported: ExportManifest, folder: Path, steps: int, seconds: float, kept: Path) -> str:
    """Runs the command; returns how it failed, or nothing if it did not."""
    command = [*shlex.split(exported.command), "--steps", str(steps)]
    with Path(kept, "log").open("wb") as output:
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment_of(exported, kept),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise UserError(f"{folder}: `{command[0]}` cannot run: {error.strerror}") from None
        try:
            code = process.wait(seconds)
            return f"ended with {code}" if code else ""
        except subprocess.TimeoutExpired:
            return f"took longer than {seconds:.0f} s"
        finally:
            _end(process)


def _keep_log(log: Path, folder: Path) -> Path:
    """Copies the output to where it stays: the exported folder, or a temporary one."""
    try:
        return Path(shutil.copy(log, folder / LOG_NAME))
    except OSError:
        elsewhere = tempfile.mkdtemp(prefix="plimsoll-verify-")
        return Path(shutil.copy(log, Path(elsewhere, LOG_NAME)))


def first_failure(kept: Path) -> str:
    """Names the first error of a run, in one line; empty if there was no output at all.

    It is the exception that a witness saw first. A rank that ends without one has printed its
    reason last, before the launcher's own lines, or was ended by a signal.
    """
    files = kept.glob("*.failed")
    failures = [FAILURE.validate_json(file.read_bytes()) for file in files]
    if failures:
        return _failure_words(min(failures, key=lambda failure: failure.at))
    lines: list[str] = []
    for line in Path(kept, "log").read_text(encoding="utf-8", errors="replace").splitlines():
        if agent := _AGENT.match(line):
            code, rank = int(agent[1]), agent[2]
            if code < 0:
                return f"rank {rank} was ended by {_signal_name(-code)}"
            break
        if not _TORCHRUN.match(line):
            lines.append(line.strip())
    if lines and lines[-1].startswith(_LAUNCHER_ERROR):
        lines = lines[: max(n for n, line in enumerate(lines) if line.startswith("Traceback"))]
    return next((line for line in reversed(lines) if line), "")


def _failure_words(failure: ObservedFailure) -> str:
    where = f" ({failure.where})" if failure.where else ""
    return f"rank {failure.rank} failed with {failure.error}{where}"


def _signal_name(number: int) -> str:
    name = signal.Signals(number).name
    return f"{name}, as the kernel does out of memory" if name == "SIGKILL" else name


def environment_of(exported: ExportManifest, kept: Path) -> dict[str, str]:
    """Ours and the plan's, with this Python's programs first and the witness before its modules.

    What torchrun leaves goes with the folder `kept`.
    """
    modules = [str(_SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
    programs = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    return {
        **os.environ,
        "PET_LOG_DIR": str(kept),  # torchrun's --log-dir
        **dict(exported.environment),
        "PATH": os.pathsep.join(programs),
        "PYTHONPATH": os.pathsep.join(modules),
        FOLDER_VARIABLE: str(kept),
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends what is left of its session: asked to first, then made to."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE_SECONDS)


def ranks_in(kept: Path) -> Iterator[ObservedRank]:
    """What witnesses have written into a folder, of ranks that took two steps."""
    for file in sorted(kept.glob("*.jsonl")):
        # a process that was killed may have left half a line
        lines = [line for line in file.read_bytes().splitlines(keepends=True) if line[-1:] == b"\n"]
        seen = [OBSERVED.validate_json(line) for line in lines]
        settings = [each for each in seen if isinstance(each, ObservedSettings)]
        if settings:
            steps = tuple(each for each in seen if isinstance(each, ObservedStep))
            yield ObservedRank(settings=settings[0], steps=steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at. `holds` is None where it could not be judged."""

    what: str
    wanted: str
    seen: str
    holds: bool | None


def changed_files(exported: ExportManifest, folder: Path) -> tuple[str, ...]:
    """Names of exported files that are no longer as they were written."""
    return tuple(name for name, digest in exported.files if _digest(folder / name) != digest)


def _digest(file: Path) -> str:
    return sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


def check_run(
    exported: ExportManifest, ranks: Sequence[ObservedRank], changed: Sequence[str] = ()
) -> tuple[Finding, ...]:
    """Settings, losses and speed of a run, each beside what it should be.

    Args:
        exported: What was written down of the plan and its measurement.
        ranks: What was seen, of one rank at least.
        changed: Exported files that their user has changed: then the data may be other data.
    """
    return (
        *_settings(exported, ranks),
        _losses(exported, ranks, changed),
        _speed(exported, ranks[0]),
    )


def _settings(exported: ExportManifest, ranks: Sequence[ObservedRank]) -> Iterator[Finding]:
    plan, seen = exported.plan, ranks[0].settings
    yield _equal("ranks", plan.world_size, len(ranks))
    yield _equal("wrapper", _wrapper(plan), seen.wrapper)
    yield _equal("ZeRO stage", plan.zero_stage, seen.zero_stage)
    if plan.engine == "torch" and plan.zero_stage:
        yield _equal("replicas", plan.replicas, seen.replicas)
        yield _units(exported, seen)
    yield _equal("parameters on", plan.offload_parameters, seen.offload_parameters)
    if plan.engine == "deepspeed":
        yield _equal("optimizer states on", plan.offload_optimizer, seen.offload_optimizer)
    yield _micro_batch(plan, seen)
    yield _accumulation(plan, ranks[0])
    yield _equal("recomputed blocks", exported.recomputed_blocks, *_count(seen.recomputed))
    yield _equal("compiled", plan.compile, seen.compiled > 0)
    yield _equal("computed in", _DTYPES[plan.precision], seen.compute)
    if seen.attention is not None:
        yield _equal("attention", plan.attention, seen.attention)
    yield _equal("optimizer", _optimizer(plan), seen.optimizer)


def _equal(what: str, wanted: object, seen: object, said: str = "") -> Finding:
    return Finding(
        what=what,
        wanted=_word(wanted),
        seen=said or _word(seen),
        holds=None if seen is None else wanted == seen,
    )


def _word(value: object) -> str:
    if value is None:
        return "not seen"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _wrapper(plan: Plan) -> str:
    if plan.engine == "deepspeed":
        return "deepspeed"
    return "fsdp2" if plan.zero_stage else "ddp" if plan.data > 1 else "none"


def _optimizer(plan: Plan) -> str:
    on_host = plan.engine == "deepspeed" and plan.offload_optimizer != "none"
    return "DeepSpeedCPUAdam" if on_host else _OPTIMIZERS[plan.optimizer]


def _count(classes: Sequence[tuple[str, int]]) -> tuple[int, str]:
    """How many modules, and in words."""
    return sum(count for _, count in classes), ", ".join(f"{n} {name}" for name, n in classes)


def _units(exported: ExportManifest, seen: ObservedSettings) -> Finding:
    return Finding(
        what="sharded by themselves",
        wanted=f"{exported.blocks} blocks, and the rest",
        seen=_count(seen.wrapped)[1],
        holds=any(count == exported.blocks for _, count in seen.wrapped),
    )


def _micro_batch(plan: Plan, seen: ObservedSettings) -> Finding:
    if plan.batching == "packed":
        return Finding(
            what="micro-batch",
            wanted=f"{plan.micro_batch}, packed",
            seen="packed samples are not told apart",
            holds=None,
        )
    return _equal("micro-batch", plan.micro_batch, seen.rows)


def _accumulation(plan: Plan, rank: ObservedRank) -> Finding:
    passes, _ = Counter(step.passes for step in rank.steps).most_common(1)[0]
    if plan.batching == "packed" and passes < plan.accumulation:
        wanted = f"{plan.accumulation} or fewer, packed"
        return Finding(what="passes of a step", wanted=wanted, seen=str(passes), holds=True)
    return _equal("passes of a step", plan.accumulation, passes)


def seen_losses(ranks: Sequence[ObservedRank]) -> list[float]:
    """Of each step, the loss whose gradient the optimizer got."""
    found = []
    for steps in zip(*(rank.steps for rank in ranks), strict=False):
        told = [step.loss for step in steps if step.loss is not None]
        if not told:
            return []
        found.append(sum(told) / len(told))
    return found


def _losses(
    exported: ExportManifest, ranks: Sequence[ObservedRank], changed: Sequence[str]
) -> Finding:
    may = f"within {100 * exported.loss_tolerance:g} % of the trial's"
    losses = seen_losses(ranks)[1:]  # the first step takes the longest samples
    steps, apart = loss_difference(losses, exported.losses)
    why = _not_compared(exported, steps, changed)
    return Finding(
        what="losses",
        wanted=may,
        seen=why or f"{100 * apart:.2g} % apart in {steps} steps",
        holds=None if why else apart <= exported.loss_tolerance,
    )


def _not_compared(exported: ExportManifest, steps: int, changed: Sequence[str]) -> str:
    if changed:
        return f"not compared, since {', '.join(changed)} was changed"
    if exported.plan.precision == "fp16" and exported.plan.engine == "deepspeed":
        return "not compared: DeepSpeed scales them by itself"
    return "" if steps else "none seen"


def _speed(exported: ExportManifest, rank: ObservedRank) -> Finding:
    record, seen = exported.samples_per_second, seen_speed(exported.plan, rank)
    if seen is None:
        return Finding(what="samples/s", wanted=spread(record), seen="too few steps", holds=None)
    ratio = seen.value / record.value
    return Finding(
        what="samples/s",
        wanted=spread(record),
        seen=f"{spread(seen)}: {100 * ratio:.0f} %",
        holds=ratio >= 1 - SLOWER or seen.overlaps(record),
    )


def seen_speed(plan: Plan, rank: ObservedRank) -> Estimate | None:
    """Samples a second by the median of steady steps; None if there are too few of them."""
    times = [step.at for step in rank.steps[UNSTEADY_STEPS - 1 :]]
    seconds = [later - earlier for earlier, later in pairwise(times)]
    if len(seconds) < FEWEST_STEPS - UNSTEADY_STEPS:
        return None
    step = median_estimate(seconds[warmup_length(seconds) :])
    batch = plan.global_batch
    return Estimate(value=batch / step.value, low=batch / step.high, high=batch / step.low)
