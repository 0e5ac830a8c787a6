"""Tracing of a model's footprint in a process of its own, while the workers start.

If the user's model hangs or dies while it is traced, the sweep does not.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from orchestrator.cluster.nodes import HEAD_RESOURCE
from search_spaces.costs.footprint import Footprint
from search_spaces.costs.plan_encoding import VariantKey
from search_spaces.errors import UserError
from search_spaces.specification.schema import SweepSpec
from workers.tracing.trace import cached_trace

# The trace runs next to starting workers, perhaps next to a trial: at this niceness it gets a
# third of the CPU time that each of them gets
_NICENESS = 5


class TraceFailed(UserError):
    """The model has no footprint; the message says why."""


class BackgroundTrace:
    """A running trace. Needs a connection to Ray unless the footprint is in the cache."""

    def __init__(self, spec: SweepSpec, wanted: tuple[VariantKey, ...], device: str) -> None:
        """Loads the footprint from the cache, or starts to trace it, with the `wanted` variants."""
        self._reference: Any = None
        self._footprint: Footprint | None = None
        with contextlib.suppress(UserError):  # the trace meets the same error and reports it
            self._footprint = cached_trace(spec, wanted, device=device)
        if self._footprint is not None:
            return
        import ray

        # one call per process: Ray would reuse it, with its niceness and its memory
        settings = {"num_cpus": 0, "resources": HEAD_RESOURCE, "max_calls": 1, "max_retries": 0}
        task = ray.remote(**settings)(_trace)
        self._reference = task.remote(spec, wanted, device, str(Path.cwd()))

    def poll(self) -> Footprint | None:
        """Returns the footprint, or None while the trace runs.

        Raises:
            TraceFailed: If the model cannot be traced.
        """
        if self._footprint is None:
            import ray

            ready, _ = ray.wait([self._reference], timeout=0)
            if ready:
                self._footprint = self._result(ray)
        return self._footprint

    def stop(self) -> None:
        """Ends the trace if it still runs."""
        if self._footprint is None:
            import ray

            with contextlib.suppress(ray.exceptions.RayError):
                ray.cancel(self._reference, force=True)

    def _result(self, ray: Any) -> Footprint:
        try:
            result = ray.get(self._reference)
        except ray.exceptions.RayError as error:  # the model may do anything to that process
            cause = getattr(error, "cause", None) or error
            first = next(iter(str(cause).strip().splitlines()), "")
            raise TraceFailed(
                f"the model cannot be traced: {type(cause).__name__}: {first}"
            ) from error
        if isinstance(result, str):
            raise TraceFailed(result)
        assert isinstance(result, Footprint)
        return result


def _trace(
    spec: SweepSpec, variants: tuple[VariantKey, ...], device: str, folder: str
) -> Footprint | str:
    """Returns the footprint, or a message: some errors of users cannot be pickled."""
    from workers.models.trust import ALL_MODULES, trust_modules
    from workers.tracing.trace import trace

    trust_modules((ALL_MODULES,))  # the driver has asked
    os.nice(_NICENESS)
    if Path(folder).is_dir():  # relative paths and the user's modules start there
        os.chdir(folder)
    try:
        return trace(spec, variants, device=device)
    except UserError as error:
        return str(error)
