"""A model's footprint, traced in a process of its own while the workers start.

There, a user's model that hangs or dies when it is traced takes nothing of the sweep with it.
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
from search_spaces.spec.schema import SweepSpec
from workers.tracing.cache import default_folder, digest_of, load

# It runs beside workers that start, and maybe beside a trial: a third of what each of them gets
_PRIORITY = 5


class TraceFailed(UserError):
    """The model has no footprint; says why."""


class BackgroundTrace:
    """A trace under way. Needs a connection to Ray unless the footprint is in the cache."""

    def __init__(self, spec: SweepSpec, wanted: tuple[VariantKey, ...], device: str) -> None:
        """Looks into the cache, and starts to trace if it is not there.

        Args:
            spec: Whose model and training step.
            wanted: Variants that the footprint must have.
            device: "cpu" or "cuda".
        """
        self._reference: Any = None
        self._footprint = _cached(spec, wanted, device)
        if self._footprint is not None:
            return
        import ray

        # one call and no more: Ray would hand the process on, with its priority and its memory
        settings = {"num_cpus": 0, "resources": HEAD_RESOURCE, "max_calls": 1, "max_retries": 0}
        task = ray.remote(**settings)(_trace)
        self._reference = task.remote(spec, wanted, device, str(Path.cwd()))

    def poll(self) -> Footprint | None:
        """The footprint once it is there, None before.

        Raises:
            TraceFailed: If there will be none.
        """
        if self._footprint is None:
            import ray

            ready, _ = ray.wait([self._reference], timeout=0)
            if ready:
                self._footprint = self._taken(ray)
        return self._footprint

    def stop(self) -> None:
        """Ends the trace if it is still under way."""
        if self._footprint is None:
            import ray

            with contextlib.suppress(ray.exceptions.RayError):
                ray.cancel(self._reference, force=True)

    def _taken(self, ray: Any) -> Footprint:
        try:
            found = ray.get(self._reference)
        except ray.exceptions.RayError as error:  # whatever the model did to that process
            cause = getattr(error, "cause", None) or error
            first = next(iter(str(cause).strip().splitlines()), "")
            raise TraceFailed(
                f"the model cannot be traced: {type(cause).__name__}: {first}"
            ) from error
        if isinstance(found, str):
            raise TraceFailed(found)
        assert isinstance(found, Footprint)
        return found


def _cached(spec: SweepSpec, wanted: tuple[VariantKey, ...], device: str) -> Footprint | None:
    with contextlib.suppress(UserError):  # the trace will meet it again, and say so
        known = load(default_folder(), digest_of(spec, device))
        there = {(v.attention, v.compute, v.split) for v in known.variants} if known else set()
        return known if there.issuperset(wanted) else None
    return None


def _trace(
    spec: SweepSpec, wanted: tuple[VariantKey, ...], device: str, folder: str
) -> Footprint | str:
    """The footprint, or why there is none: the errors of users do not all travel."""
    from workers.tracing.trace import trace

    os.nice(_PRIORITY)
    if Path(folder).is_dir():  # where relative paths and the user's modules are found
        os.chdir(folder)
    try:
        return trace(spec, wanted, device=device)
    except UserError as error:
        return str(error)
