"""The first optimizer steps of an exported script, in warm processes instead of its launcher's.

Each rank runs the whole script, as `torchrun` would start it, with one change: torch's AdamW is
SGD, which moves each weight by the gradient that reached the optimizer (see `plain_loop`). A script
of Ray Train starts no Ray here: its ranks run what `train_loop` runs.
"""

import contextlib
import json
import os
import runpy
import socket
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import yaml
from accelerate import ParallelismConfig
from torch import nn
from torch.amp.grad_scaler import GradScaler

from orchestrator.export import hf_trainer
from orchestrator.export.bundle import write_bundle
from orchestrator.export.formats import export_bundle
from orchestrator.export.source import ExportSource
from search_spaces.settings.export_manifest import ExportManifest
from tests.workers.launch import rank_processes
from tests.workers.one_step import whole_weights
from tests.workers.parity.plain_loop import FP16_SCALE
from tests.workers.parity.ranks import TOO_LARGE
from workers.run_recorder.module_hooks import root_modules

_SECONDS = 1200.0
_STEPS = 3  # weights after the second one are read at the start of the third update


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstSteps:
    """The first two updates of an exported script.

    Attributes:
        changes: Of the weights, by name, on each rank.
        rates: The learning rates that the ranks' schedules gave the first one.
    """

    changes: list[dict[str, torch.Tensor]]
    rates: set[float]


def first_steps(
    source: ExportSource, name: str, rate: float, folder: Path, *, overflows: bool = False
) -> FirstSteps:
    """Exports a plan in a format, and runs the script up to its third update.

    Args:
        source: The plan, as if it had been measured.
        name: The format.
        rate: Learning rate of SGD, in place of the plan's.
        folder: A new folder for the script.
        overflows: The first step's gradients overflow fp16, so that the second step is the first
            to change weights.

    Raises:
        UserError: If the format cannot express the plan.
        AssertionError: If a rank fails; with its traceback.
    """
    if name == "hf-trainer" and source.plan.tensor > 1:
        # accelerate takes tensor ranks on GPUs only, but all that its check guards runs on CPUs too
        source = replace(source, device="cuda")
        write_bundle(export_bundle(source, name), source, folder)
        arguments = folder / hf_trainer.ARGUMENTS
        on_cpu = {"use_cpu": True, "ddp_backend": "gloo"}
        arguments.write_text(json.dumps(json.loads(arguments.read_text()) | on_cpu))
    else:
        write_bundle(export_bundle(source, name), source, folder)
    ranks = source.plan.world_size
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ends, processes = [], []
    with rank_processes("forkserver") as context:
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_run, args=(theirs, folder, rank, ranks, port, rate, overflows)
            )
            process.start()
            theirs.close()
            ends.append(ours)
            processes.append(process)
    try:
        updates = [_answer(end) for end in ends]
    finally:
        for process in processes:
            process.kill()
            process.join()
    changes = [
        {name: torch.from_numpy(change) for name, change in update["changes"].items()}
        for update in updates
    ]
    return FirstSteps(changes=changes, rates={update["rate"] for update in updates})


def _answer(end: Connection) -> dict[str, Any]:
    assert end.poll(_SECONDS), "a rank did not answer"
    answer: dict[str, Any] | str = end.recv()
    assert not isinstance(answer, str), answer
    return answer


def _run(
    end: Connection, folder: Path, rank: int, ranks: int, port: int, rate: float, overflows: bool
) -> None:
    manifest = ExportManifest.read(folder)
    os.environ |= {
        **dict(manifest.environment),
        **_launched_by_accelerate(folder / "accelerate_config.yaml"),
        **{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)},
        **{"LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
    }
    os.chdir(folder)
    if manifest.plan.tensor > 1:
        ParallelismConfig._validate_accelerator = lambda *_: None
    steps = _STEPS + overflows
    sys.argv = ["train.py", "--steps", str(steps)]
    update: dict[str, Any] = {}
    _replace_adamw(update, rate)
    if overflows:
        _overflow_once()
    try:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # noqa: PTH123
            if manifest.format == "ray-train":
                _run_loop(rank, ranks, steps)
            else:
                runpy.run_path("train.py", run_name="__main__")
    except BaseException:  # noqa: BLE001  # told to the test
        end.send(traceback.format_exc())
    else:
        end.send(update or "the script took no third step")


def _launched_by_accelerate(config: Path) -> dict[str, str]:
    """Returns what `accelerate launch` would set, as far as the script depends on it."""
    if not config.exists():
        return {}
    return {"ACCELERATE_MIXED_PRECISION": yaml.safe_load(config.read_text())["mixed_precision"]}


def _run_loop(rank: int, ranks: int, steps: int) -> None:
    """Runs what `train_loop` of Ray Train's script does, without Ray."""
    script: Mapping[str, Any] = runpy.run_path("train.py", run_name="script")
    if ranks > 1:
        dist.init_process_group("gloo")
    device = torch.device("cpu")
    model = script["prepare"](*script["make_model"](), device)
    for _ in zip(range(steps), script["train_steps"](model, rank, device), strict=False):
        pass


def _overflow_once() -> None:
    """Makes loss scales too large for one step, after which no step overflows."""

    rates = {"init_scale": TOO_LARGE, "backoff_factor": FP16_SCALE / TOO_LARGE}
    original = GradScaler.__init__

    def too_large(self: GradScaler, device: str, **kwargs: Any) -> None:
        original(self, device, **(kwargs | rates))

    GradScaler.__init__ = too_large  # type: ignore[assignment,method-assign]


def _replace_adamw(update: dict[str, Any], rate: float) -> None:
    """Makes AdamW SGD, and fills `update` with the change by two steps, before the third."""

    class Sgd(torch.optim.AdamW):
        """SGD under AdamW's name, which scripts and trainers ask for."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            weights = (weight for group in self.param_groups for weight in group["params"])
            self.model = _model_of({id(weight) for weight in weights})
            self._step_supports_amp_scaling = False  # scalers would call it to skip a step
            self.before: dict[str, torch.Tensor] = {}
            # before those of FSDP, which gather weights
            self.model.register_forward_pre_hook(self._begin, prepend=True)
            self.has_begun, self.steps = False, 0

        def _begin(self, *_: Any) -> None:
            self.before = self.before or whole_weights(self.model)
            self.has_begun = True

        @torch.no_grad()
        def step(self, closure: None = None) -> None:  # type: ignore[override]
            self.steps += self.has_begun  # DeepSpeed calls it for each group of weights
            if self.has_begun and self.steps == 1:
                self.rate = self.param_groups[0]["lr"]
            if self.has_begun and self.steps == _STEPS:
                after = whole_weights(self.model)
                changes = {name: self.before[name] - weight for name, weight in after.items()}
                update["changes"] = {
                    name: change.float().numpy() for name, change in changes.items()
                }
                update["rate"] = self.rate
            self.has_begun = False
            for group in self.param_groups:
                for weight in group["params"]:
                    if weight.grad is not None:
                        weight.sub_(weight.grad, alpha=rate)

    torch.optim.AdamW = Sgd  # type: ignore[misc]


def _model_of(weights: set[int]) -> nn.Module:
    """Returns the outermost module with these weights."""
    for root in root_modules():
        if weights & {id(weight) for weight in root.parameters()}:
            return root
    raise AssertionError("no module has the optimizer's weights")
