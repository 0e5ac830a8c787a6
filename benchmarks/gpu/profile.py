"""Trace of some steps of two plans, the fastest and micro-batch 1: seconds by kind of work.

On a GPU kernels are counted, and what lies between them is "idle"; on a CPU
operators are.
"""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable
from typing import Any

from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.cases import BASELINE, LLAMA_1B, winner
from benchmarks.gpu.run import Run, apart
from search_spaces.trial import TrialRequest
from workers.engines.build import build_training, load_engine
from workers.engines.stopwatch import Stopwatch
from workers.memory.device_runtime import runtime_for
from workers.models.built import batch_source
from workers.models.load import build
from workers.prepare import prepare
from workers.worker import Worker

WARMUP, STEPS = 3, 3
IDLE, OTHER = "idle", "elementwise and other"
ATTENTION = "attention"
_LONGEST = 40  # kernels that are written by name
COMPILED = "compiled elementwise"
# the first that a name holds decides; names of cuBLAS, CUTLASS, cuDNN, flash attention and torch
_KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("matmul", ("triton_tem", "triton_mm", "triton_bmm")),
    (COMPILED, ("triton_",)),  # their names list all operators that were fused
    ("norms and loss", ("cunn_softmax", "cunn_spatialsoftmax", "log_softmax", "logsoftmax")),
    # cuDNN generates its own: cudnn_generated_fort_native_sdpa_sm90_...
    (ATTENTION, ("flash", "fmha", "attention", "sdpa", "softmax")),
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


def traced(knobs: dict[str, Any], tiny: bool) -> dict[str, Any]:
    """Seconds of one optimizer step by kind of work and by kernel, the mean of some."""
    spec, plan = LLAMA_1B.one_plan(knobs, tiny=tiny)
    worker = Worker.start(spec)
    device = worker.device
    facts = prepare(spec)
    load_engine(plan, device)
    model = build(spec.model, spec.train, attention=plan.attention)
    source = batch_source(model, spec)
    request = TrialRequest(number=0, plan=plan, spec=spec)
    training = build_training(request, model, facts, None, device)
    del model
    watch = Stopwatch(runtime_for(device))
    numbers = itertools.count()
    with contextlib.closing(training):

        def steps(count: int) -> None:
            for number in itertools.islice(numbers, count):
                given = source.step(plan, 0, number)
                training.step(given.batches, given.targets, watch)
            watch.synchronize()

        steps(WARMUP)
        activity = ProfilerActivity.CUDA if device.type == "cuda" else ProfilerActivity.CPU
        named, wall_seconds = recorded(lambda: steps(STEPS), activity)
    each = [(name, seconds / STEPS) for name, seconds in named]
    wall_seconds /= STEPS
    return {
        "plan": plan.as_dict(),
        "rate": spec.train.global_batch / wall_seconds,
        "seconds": by_kind(each, wall_seconds),
        "kernels": dict(sorted(each, key=lambda one: -one[1])[:_LONGEST]),
        "attention": [name for name, _ in each if kind_of(name) == ATTENTION],
    }


def measure(run: Run) -> None:
    """Traces both plans, each in a process of its own."""
    for name, knobs in (("winner", winner(tiny=run.tiny)), ("micro-batch 1", BASELINE)):
        if not run.has(name):
            run.write(name, {"way": name} | apart(traced, knobs, run.tiny))
