"""Tracing of a model's footprint in a process of its own, while the workers start.

If the user's model hangs or dies while it is traced, the sweep does not.
"""

from __future__ import annotations

import contextlib
from multiprocessing.pool import AsyncResult, ThreadPool

from search_spaces.costs.footprint import Footprint
from search_spaces.costs.plan_encoding import VariantKey
from search_spaces.errors import UserError
from search_spaces.specification.schema import SweepSpec
from workers.models.isolation import cancel_apart
from workers.tracing.trace import cached_trace, trace_apart

# The trace runs next to starting workers, perhaps next to a trial: at this niceness it gets a
# third of the CPU time that each of them gets
_NICENESS = 5


class BackgroundTrace:
    """A running trace."""

    def __init__(self, spec: SweepSpec, wanted: tuple[VariantKey, ...], device: str) -> None:
        """Loads the footprint from the cache, or starts to trace it, with the `wanted` variants."""
        self._running: AsyncResult[Footprint] | None = None
        self._footprint: Footprint | None = None
        with contextlib.suppress(UserError):  # the trace meets the same error and reports it
            self._footprint = cached_trace(spec, wanted, device=device)
        if self._footprint is None:
            options = {"device": device, "niceness": _NICENESS}
            pool = ThreadPool(1)  # of a daemon
            self._running = pool.apply_async(trace_apart, (spec, wanted), options)
            pool.close()

    def poll(self) -> Footprint | None:
        """Returns the footprint, or None while the trace runs.

        Raises:
            UserError: If the model cannot be traced.
        """
        if self._running is not None and self._running.ready():
            self._footprint = self._running.get()
        return self._footprint

    def stop(self) -> None:
        """Ends the trace if it still runs."""
        if self._running is not None and not self._running.ready():
            cancel_apart()
