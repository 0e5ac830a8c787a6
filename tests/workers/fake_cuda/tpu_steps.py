"""Training steps on fake tensors of a device of type tpu, in a process of their own.

    python -m tests.workers.fake_cuda.tpu_steps CASES

CASES is a list in JSON of `[train section, knobs]`, and so are the results: see `steps`. torch_tpu
is played by torch's own backend for tests, whose module has what torch_tpu 0.2.0 gives `torch.tpu`.
"""

import contextlib
import json
import sys
from typing import Any

from tests.workers.fake_cuda.steps import NoStream, run_cases, step

_kept: list[Any] = []  # what is registered ends with its library


def pretend() -> None:
    """Gives torch a device of type tpu that computes nothing."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.backend_registration import (
        _DummyBackendModule,
        _setup_privateuseone_for_python_backend,
    )

    from workers.models.deferred_init import InitialValues
    from workers.parallel import draws

    class Module(_DummyBackendModule):  # type: ignore[misc]
        Stream, Event, current_stream = NoStream, NoStream, NoStream

        def get_amp_supported_dtype(self) -> list[Any]:
            return [torch.bfloat16, torch.float16, torch.float32]

        def stream(self, _: Any) -> Any:
            return contextlib.nullcontext()

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"torch.tpu has no {name}")

    _setup_privateuseone_for_python_backend("tpu", backend_module=Module())
    # torch_tpu has the casts, of which only that they are asked for is seen here
    _kept.append(torch.library.Library("_", "IMPL", "AutocastPrivateUse1"))
    _kept[0].fallback(torch.library.fallthrough_kernel)
    fakes: Any = FakeTensorMode
    fakes.avoid_device_init = True  # nothing can be copied to the device
    initial: Any = InitialValues
    initial._fill = lambda *_, **__: None
    generators: Any = draws
    generators._generators = lambda _: []


def main() -> None:
    """Runs the steps of all cases."""
    pretend()
    run_cases(lambda train, knobs: step(train, knobs, device="tpu"), json.loads(sys.argv[1]))


if __name__ == "__main__":
    main()
