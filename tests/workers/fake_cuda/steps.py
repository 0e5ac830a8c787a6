"""Training steps on fake CUDA tensors, in a process of their own.

    python -m tests.workers.fake_cuda.steps LIBRARY CASES

LIBRARY is the compiled fake_cuda.cpp, CASES a list in JSON of `[train section, knobs]`. Prints a
list in JSON: for each case the device of the loss, the devices of the weights, and the bytes of
optimizer states on the device, or else the error.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TINY = {
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
}
PLAN = {
    "zero_stage": 0,
    "micro_batch": 2,
    "accumulation": 2,
    "checkpoint_ratio": 0.0,
    "attention": "sdpa",
    "batching": "padded",
    "data": 1,
}


def load(library: str) -> None:
    """Loads the fake device, before torch is imported and asks which devices there are."""
    assert "torch" not in sys.modules
    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent / "lib"
    ctypes.CDLL(str(folder / "libtorch_global_deps.so"), mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)


class NoStream:
    """A stream or an event of a device that does nothing."""

    device_index, device_type, stream_id = 0, 1, 0

    def __init__(self, *_: Any, **__: Any) -> None:
        """Takes what torch's own take."""

    def __getattr__(self, _: str) -> Any:
        return NoStream

    def __call__(self, *_: Any) -> NoStream:
        return self


def pretend() -> None:
    """Replaces what asks for a real device: values of tensors, streams, draws."""
    import torch
    from torch.amp.grad_scaler import GradScaler

    from workers.models.deferred_init import InitialValues
    from workers.parallel import draws

    cuda: Any = torch.cuda
    cuda.Stream, cuda.Event = NoStream, NoStream
    cuda.current_stream = NoStream
    cuda.stream = contextlib.nullcontext
    cuda.current_device = lambda: 0
    cuda.get_device_capability = lambda *_: (9, 0)
    cuda.is_bf16_supported = lambda *_, **__: True
    cuda.amp.common.amp_definitely_not_available = lambda: False
    scaler: Any = GradScaler
    scaler._maybe_opt_step = lambda _, optimizer, __, *___, **____: optimizer.step()
    initial: Any = InitialValues
    initial._fill = lambda *_, **__: None
    generators: Any = draws
    generators._generators = lambda _: []


@contextlib.contextmanager
def mesh_of(plan: Any, device: str) -> Iterator[Any]:
    """Yields the mesh of a plan over torch's fake process group; None for one rank."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from search_spaces.settings.rank_layout import MESH_DIMENSIONS, mesh_shape, rank_coordinates
    from workers.process_groups import Mesh

    if plan.world_size == 1:
        yield None
        return
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=plan.world_size)
    try:
        shape = mesh_shape(plan)
        grid = torch.arange(plan.world_size).reshape(shape)
        groups = [
            dist.new_group(grid.movedim(dimension, -1).reshape(-1, size)[0].tolist())
            for dimension, size in enumerate(shape)
        ]
        world = dist.group.WORLD
        assert world is not None
        yield Mesh(
            place=rank_coordinates(plan, 0),
            group=world,
            devices=DeviceMesh.from_group(
                groups, device, mesh=grid, mesh_dim_names=MESH_DIMENSIONS
            ),
        )
    finally:
        dist.destroy_process_group()


def step(train: dict[str, Any], knobs: dict[str, Any], device: str = "cuda") -> dict[str, Any]:
    """Builds a training and runs one optimizer step of it."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from search_spaces.plan import Plan
    from search_spaces.specification.schema import SweepSpec
    from search_spaces.trial import TrialRequest
    from workers.engines.build import build_training
    from workers.engines.stopwatch import Stopwatch
    from workers.memory.device_runtime import CpuRuntime
    from workers.models.built import batch_source
    from workers.models.load import build
    from workers.prepare import prepare

    base = {"global_batch": 4, "sequence_length": 64, "precision": "bf16", "grad_clip": 1.0}
    spec = SweepSpec.model_validate(
        {
            "model": {"name": "llama-3.2-1b", "config": TINY},
            "cluster": {"device": device, "workers": 1},
            "train": base | train,
        }
    )
    plan = Plan(**(PLAN | {"precision": spec.train.precision} | knobs))
    facts = prepare(spec)
    model = build(spec.model, spec.train, attention=plan.attention)
    samples = batch_source(model, spec).step(plan, 0, 0)
    request = TrialRequest(number=0, plan=plan, spec=spec)
    with mesh_of(plan, device) as mesh, FakeTensorMode(allow_non_fake_inputs=True):
        training = build_training(request, model, facts, mesh, torch.device(device, 0))
        module: Any = training.module  # type: ignore[attr-defined]
        training.gradient_norms.append(0.0)  # type: ignore[attr-defined]  # a fake's is not read
        loss = training.step(samples.batches, samples.targets, Stopwatch(CpuRuntime()))
        return {
            "loss": str(loss.device),
            "weights": sorted({str(one.device) for one in module.parameters()}),
            "optimizer_bytes": training.state_bytes().optimizer_states,
        }


def run_cases(run: Callable[..., Any], cases: list[Any]) -> None:
    """Runs all cases and prints what became of them."""
    results: list[Any] = []
    for case in cases:
        try:
            results.append(run(*case))
        except Exception:  # noqa: BLE001  # told to the test
            results.append({"error": traceback.format_exc()[-3000:]})
    print(json.dumps(results))


def main() -> None:
    """Runs the steps of all cases."""
    library, cases = sys.argv[1:]
    load(library)
    pretend()
    run_cases(step, json.loads(cases))


if __name__ == "__main__":
    main()
