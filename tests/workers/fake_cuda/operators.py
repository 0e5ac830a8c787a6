"""Operators of a step under autocast, on fake CUDA tensors and as the trace emulates them.

    python -m tests.workers.fake_cuda.operators LIBRARY MODELS

LIBRARY is the compiled fake_cuda.cpp, MODELS a list in JSON of `[task, model type]`. Prints a list
in JSON: for each model the lines in which both differ, or else the error.
"""

import contextlib
import difflib
import json
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.workers.fake_cuda.steps import load, pretend, run_cases

SAMPLES, TOKENS = 2, 16
# torch composes its backward from other operators where a device has no kernel; CUDA has one
KERNELS = ("silu_backward",)


def differences(task: str, model_type: str, folder: Path) -> list[str]:
    """Returns what is computed otherwise: operators, types and shapes, in order."""
    emulated = _operators("cpu", task, model_type, folder)
    faked = _operators("cuda", task, model_type, folder)
    assert emulated
    lines = difflib.unified_diff(emulated, faked, "emulated", "fake CUDA", lineterm="", n=0)
    return list(lines)


def _operators(device: str, task: str, model_type: str, folder: Path) -> list[str]:
    """Runs forward and backward once; the emulation computes on fake CPU tensors."""
    import torch
    from torch import nn
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    from tests.workers.parity.architectures import model_folder, spec_of
    from workers.models.load import build
    from workers.plain_torch.slices import replace_weights
    from workers.tracing.operators import tensors
    from workers.tracing.step import CudaEmulation, autocast_as_on

    class Operators(TorchDispatchMode):
        """Lists operators with the types and shapes of their results."""

        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.lines: list[str] = []

        def __torch_dispatch__(
            self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            made = list(tensors(result))
            brings_a_number = func is torch.ops.aten._to_copy.default and made[0].numel() == 1
            if not (func.is_view or func.namespace == "prim" or brings_a_number):
                # experts are counted in int32 on CUDA, in fp32 on CPUs, of the same bytes
                types_ = [str(one.dtype).replace("int32", "float32") for one in made]
                shapes = [
                    f"{dtype}{list(one.shape)}" for dtype, one in zip(types_, made, strict=True)
                ]
                self.lines.append(" ".join([str(func), *shapes]))
            return result

    def on_device(weight: nn.Parameter) -> nn.Parameter:
        return nn.Parameter(torch.empty_like(weight, device=device), weight.requires_grad)

    spec = spec_of(task, model_folder(model_type, folder))
    module: Any = build(spec.model, spec.train, attention="eager").module
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device(device):
        replace_weights(module, on_device)
        for part in module.modules():
            for key, buffer in part._buffers.items():
                if buffer is not None:
                    part._buffers[key] = torch.empty_like(buffer, device=device)
        module.train()
        numbers = torch.ones(SAMPLES, TOKENS, dtype=torch.long)
        labels = numbers[:, 0] if task == "sequence-classification" else numbers
        is_emulated = device == "cpu"
        emulation = CudaEmulation() if is_emulated else contextlib.nullcontext()
        with Operators() as operators, emulation:
            casts: Any = torch.autocast("cuda", torch.bfloat16)
            with autocast_as_on("cuda", enabled=True) if is_emulated else casts:
                loss = module(input_ids=numbers, labels=labels).loss
            loss.backward()
    return operators.lines


def main() -> None:
    """Compares all models."""
    library, models = sys.argv[1:]
    load(library)
    pretend()
    import torch

    kernels = torch.library.Library("aten", "IMPL")
    for name in KERNELS:
        kernels.impl(name, lambda gradient, _: torch.empty_like(gradient), "CUDA")
    with tempfile.TemporaryDirectory() as folder:
        run_cases(partial(differences, folder=Path(folder)), json.loads(models))


if __name__ == "__main__":
    main()
