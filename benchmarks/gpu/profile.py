"""Trace of some steps of the baseline: seconds of a step by kind of work.

On a GPU kernels are counted, and what lies between them is "idle"; on a CPU
operators are.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable

from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.cases import LLAMA_1B, space_of
from benchmarks.gpu.task import Figures, Task
from search_spaces.plan import Plan
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import TrialRequest
from workers.data.batches import batch_source
from workers.engines.build import build_training, load_engine
from workers.engines.stopwatch import stopwatch_for
from workers.models.load import build
from workers.prepare import prepare
from workers.worker import Worker

WARMUP, STEPS = 3, 3
IDLE, OTHER = "idle", "elementwise and other"
COMPILED = "compiled elementwise"
# the first that a name holds decides; names of cuBLAS, CUTLASS, cuDNN, flash attention and torch
_KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("matmul", ("triton_tem", "triton_mm", "triton_bmm")),
    (COMPILED, ("triton_",)),  # their names list all operators that were fused
    ("norms and loss", ("cunn_softmax", "cunn_spatialsoftmax", "log_softmax", "logsoftmax")),
    ("attention", ("flash", "fmha", "attention", "softmax")),
    ("optimizer", ("adam", "multi_tensor_apply", "foreach")),
    ("matmul", ("gemm", "nvjet", "cutlass", "xmma", "aten::mm", "aten::addmm", "aten::bmm")),
    ("copies", ("memcpy", "memset", "copy", "aten::_to_copy", "fill")),
    ("norms and loss", ("norm", "nll_loss", "cross_entropy", "reduce")),
    ("embedding", ("embedding", "index", "gather", "scatter")),
)


def kind_of(name: str) -> str:
    """The kind of work that a kernel or operator does, by its name."""
    low = name.lower()
    return next((kind for kind, words in _KINDS if any(word in low for word in words)), OTHER)


def by_kind(named: Iterable[tuple[str, float]], wall_seconds: float) -> dict[str, float]:
    """Seconds by kind, and the rest of the wall clock as idle; most first.

    Args:
        named: Names with their seconds; those of one device do not overlap.
        wall_seconds: Of all together.
    """
    found: dict[str, float] = {}
    for name, seconds in named:
        kind = kind_of(name)
        found[kind] = found.get(kind, 0.0) + seconds
    found[IDLE] = max(wall_seconds - sum(found.values()), 0.0)
    return dict(sorted(found.items(), key=lambda each: -each[1]))


def recorded(
    run: Callable[[], None], activity: ProfilerActivity
) -> tuple[list[tuple[str, float]], float]:
    """Runs twice under the profiler, and reads the second time, for the first one loads CUPTI.

    Args:
        run: Some steps, and the wait for their end.
        activity: Kernels of a GPU, or operators of a CPU.

    Returns:
        Names with their seconds, and the seconds of the wall clock, without the profiler's start.
    """
    with profile(activities=[activity]):
        run()
    with profile(activities=[activity]) as seen:
        started = time.perf_counter()
        run()
        wall_seconds = time.perf_counter() - started
    on_device = activity is ProfilerActivity.CUDA
    named = [
        (each.key, (each.self_device_time_total if on_device else each.self_cpu_time_total) / 1e6)
        for each in seen.key_averages()
        if not each.is_user_annotation  # spans over kernels that are counted by themselves
    ]
    return named, wall_seconds


def traced(spec: SweepSpec, plan: Plan) -> dict[str, float]:
    """Seconds of one optimizer step by kind of work, the mean of some."""
    worker = Worker.start(spec)
    device = worker.device
    facts = prepare(spec)
    load_engine(plan, device)
    model = build(spec.model, spec.train, attention=plan.attention)
    source = batch_source(model, spec)
    request = TrialRequest(number=0, plan=plan, spec=spec)
    training = build_training(request, model, facts, None, device)
    del model
    watch = stopwatch_for(device)
    numbers = itertools.count()
    with contextlib.closing(training):

        def step(number: int) -> None:
            given = source.step(plan, 0, number)
            training.step(given.batches, given.targets, watch)

        def steps(count: int) -> None:
            for _ in range(count):
                step(next(numbers))
            watch.synchronize()

        steps(WARMUP)
        activity = ProfilerActivity.CUDA if device.type == "cuda" else ProfilerActivity.CPU
        named, wall_seconds = recorded(lambda: steps(STEPS), activity)
    return by_kind(((name, seconds / STEPS) for name, seconds in named), wall_seconds / STEPS)


def measure(task: Task) -> Figures:
    """Traces the baseline of Llama-3.2 1B, in this process."""
    spec = LLAMA_1B.spec(tiny=task.tiny)
    plan = space_of(spec, task.worker.here(spec)).baseline
    task.worker.stop()
    return {"plan": plan.as_dict(), "seconds": traced(spec, plan)}
