"""Runs one trial without Ray: in this process, or as a rank under torchrun."""

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.distributed as dist
from pydantic import TypeAdapter

from search_spaces.errors import ClusterError
from search_spaces.facts import ClusterFacts, StepFindings
from search_spaces.hardware.device import BACKENDS
from search_spaces.plan import Plan
from search_spaces.rules.base import RuleContext
from search_spaces.rules.registry import refusal
from search_spaces.settings.render import Environment, render_environment
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Outcome, TrialRequest
from workers.entry import run_trial, warm_up
from workers.memory.device_runtime import runtime_for
from workers.prepare import prepare_driver
from workers.probe.doctor import lacks
from workers.process_groups import leave_errors_to_alarm
from workers.worker import Worker, pick_device

_FINDINGS: TypeAdapter[StepFindings | None] = TypeAdapter(StepFindings | None)
_LONG_WAIT_SECONDS = 3600.0  # for a rank that writes its checkpoint, or compiles


def run_standalone(spec: SweepSpec, plan: Plan, *, validation: bool = False) -> Outcome | None:
    """Runs one plan on the ranks that were started.

    Args:
        spec: The specification of the sweep.
        plan: The plan to run.
        validation: Run longer, then evaluate and write a checkpoint.

    Returns:
        The outcome on rank 0, None on the other ranks.

    Raises:
        ClusterError: If the plan needs another number of ranks than were started.
        UserError: If the model or the data cannot be used.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if plan.world_size != world_size:
        command, ranks = shlex.join(["plimsoll", *sys.argv[1:]]), plan.world_size
        if ranks > 1:
            command = f"torchrun --nproc-per-node {ranks} --no-python {command}"
        raise ClusterError(
            f"the plan needs {ranks} ranks, but {world_size} were started; use: {command}"
        )
    device = pick_device(spec.cluster.device, int(os.environ.get("LOCAL_RANK", "0")))
    _restart_with(render_environment(plan, device.type))
    cluster = ClusterFacts(
        device=device.type,
        slots=world_size,
        memory_limit_bytes=spec.memory_limit_bytes,
        lacks=lacks(device.type),
    )
    facts, _ = prepare_driver(spec)
    context = RuleContext(spec=spec, model=facts, cluster=cluster)
    is_first = os.environ.get("RANK", "0") == "0"
    if refused := refusal(plan, context):
        return refused if is_first else None
    with _process_group(device, world_size):
        worker = Worker.start(spec)
        warm_up(spec, worker)
        request = trial_request(plan, spec, validation=validation)
        # of the first rank, since a probe may run out of time on another
        findings = _FINDINGS.validate_json(worker.ranks.gather(_FINDINGS.dump_json(facts.step))[0])
        outcome = run_trial(replace(request, step=findings), worker)
    return outcome if is_first else None


def trial_request(plan: Plan, spec: SweepSpec, *, validation: bool) -> TrialRequest:
    """Returns the trial or validation of a plan, in which ranks may wait long for each other."""
    request = TrialRequest(number=0, plan=plan, spec=spec, validation=validation)
    if request.has_long_waits:
        return replace(request, collective_seconds=_LONG_WAIT_SECONDS)
    return request


def _restart_with(environment: Environment) -> None:
    # libraries read these variables once, when the process starts
    if any(os.environ.get(name) != value for name, value in environment):
        os.environ.update(environment)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


@contextlib.contextmanager
def _process_group(device: torch.device, world_size: int) -> Iterator[None]:
    if world_size == 1:
        yield
        return
    leave_errors_to_alarm()
    dist.init_process_group(BACKENDS[device.type])
    try:
        yield
    finally:
        dist.destroy_process_group()
        runtime_for(device).give_back()
