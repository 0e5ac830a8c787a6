"""Records backward passes and optimizer steps of a training process as they happen.

The script stays unmodified. Backward is observed in `torch.autograd.backward`, which all calls
reach. Steps are observed by torch's hook for all optimizers, including DeepSpeed's inner one.
"""

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

import torch
import wrapt
from torch.amp.grad_scaler import GradScaler
from torch.optim.optimizer import register_optimizer_step_post_hook

from search_spaces.settings.observed_run import FOLDER_VARIABLE, OBSERVED, Observed, ObservedStep
from workers.run_recorder.module_hooks import ModuleHooks

_Arguments = tuple[Any, ...]

_OBSERVED_STEP = 1  # forward passes are observed in the second step, after lazy set-up


def record_steps(_: ModuleType) -> None:
    """Starts recording in this process; called after the import of torch."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        StepRecorder(Path(folder)).begin()


class StepRecorder:
    """Records the steps of one process; its file is created at the first step."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: TextIO | None = None
        self._steps = 0
        self._passes = 0
        self._loss: torch.Tensor | None = None
        self._scale = 1.0
        self._clip: float | None = None  # of the step
        self._in_backward = False  # in any thread
        self._hooks: ModuleHooks | None = None

    def begin(self) -> None:
        """Starts recording."""
        wrapt.wrap_function_wrapper(torch.autograd, "backward", self._backward)
        wrapt.wrap_function_wrapper(GradScaler, "scale", self._scaled)
        self._watch_clipping()
        register_optimizer_step_post_hook(self._stepped)

    def _backward(
        self, backward: Callable[..., None], _: object, args: _Arguments, kwargs: dict[str, Any]
    ) -> None:
        if self._in_backward:  # a nested call, by recomputation
            return backward(*args, **kwargs)
        self._passes += 1
        loss = args[0] if args else kwargs.get("tensors")
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            value = loss.detach().float().reshape(()) / self._scale
            self._loss = value if self._loss is None else self._loss + value
            if self._hooks is not None:
                self._hooks.backward_values.append(value)
        self._in_backward = True
        try:
            return backward(*args, **kwargs)
        finally:
            self._in_backward = False

    def _scaled(
        self, scale: Callable[..., Any], scaler: Any, args: _Arguments, kwargs: dict[str, Any]
    ) -> Any:
        scaled = scale(*args, **kwargs)
        self._scale = scaler.get_scale()
        return scaled

    def _watch_clipping(self) -> None:
        """Notes the norm that gradients are clipped to.

        Ray pickles the functions of a script for its workers. A plain function under the name that
        it has is pickled by that name, which means the worker's own; one of wrapt's by its code.
        """
        clip = torch.nn.utils.clip_grad._clip_grads_with_norm_

        @functools.wraps(clip)
        def clipped(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> None:
            self._clip = float(max_norm)
            clip(parameters, max_norm, *args, **kwargs)

        # the name that `clip_grad_norm_` calls, and the public one
        torch.nn.utils.clip_grad._clip_grads_with_norm_ = clipped
        torch.nn.utils.clip_grads_with_norm_ = clipped

    def _stepped(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if self._passes == 0:  # still the same step, by the optimizer of other weights
            return
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        loss = None if self._loss is None else float(self._loss)
        rate = max(float(group["lr"]) for group in optimizer.param_groups)
        self._write(ObservedStep(at=time.monotonic(), passes=self._passes, loss=loss, rate=rate))
        self._steps += 1
        self._passes, self._loss = 0, None
        if self._steps == _OBSERVED_STEP:
            self._hooks = ModuleHooks.begin(lambda: self._in_backward)
        elif self._hooks is not None:
            self._write(self._hooks.end(optimizer, self._clip))
            self._hooks = None
        self._clip = None

    def _write(self, event: Observed) -> None:
        if self._file is None:
            path = self._folder / f"{os.uname().nodename}-{os.getpid()}.jsonl"
            self._file = path.open("a", encoding="utf-8", buffering=1)
        self._file.write(OBSERVED.dump_json(event).decode() + "\n")
