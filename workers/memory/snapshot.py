"""torch's snapshot of GPU memory at the moment when a rank runs out of it.

The snapshot is taken when the allocator fails, before anything is freed. Nothing is recorded
before that, so steps take no extra time. It lists segments and blocks without the stacks that
allocated them: recording a history would slow down every measured step.

The file is a pickle, which https://pytorch.org/memory_viz displays. Plimsoll does not read it.

Source: torch.cuda.memory._dump_snapshot, torch._C._cuda_attachOutOfMemoryObserver (torch 2.13).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

_Observer = Callable[[int, int, int, int], None]  # device, bytes asked for, in use, free


class OomSnapshots:
    """Writes a snapshot for each trial that runs out of GPU memory, if the request names a file."""

    def __init__(self, dump: Callable[[str], None] | None = None) -> None:
        """Prepares snapshots; `watch` starts them.

        Args:
            dump: Writes a snapshot to a file; None for torch's own function.
        """
        self._dump = dump or torch.cuda.memory._dump_snapshot
        self._file: Path | None = None

    def watch(self, attach: Callable[[_Observer], None] | None = None) -> None:
        """Observes failures of the allocator; once per process, since it cannot be detached.

        Args:
            attach: Registers the observer; None for the allocator's own function.
        """
        attach = attach or getattr(torch._C, "_cuda_attachOutOfMemoryObserver", None)
        if attach is not None:
            attach(self._ran_out)

    @contextlib.contextmanager
    def armed(self, stem: str | None, rank: int) -> Iterator[None]:
        """Writes `stem.rank-N.pickle` if memory runs out inside the context; None: no file.

        A host without the study's folder writes nothing either, since the file would be lost.
        """
        self._file = None if stem is None else Path(f"{stem}.rank-{rank}.pickle")
        try:
            yield
        finally:
            self._file = None

    def settle(self, stem: str | None, rank: int, *, kept: bool) -> None:
        """Deletes this rank's snapshot unless `kept`: only the outcome's rank keeps its own."""
        if stem is not None and not kept:
            with contextlib.suppress(OSError):
                Path(f"{stem}.rank-{rank}.pickle").unlink(missing_ok=True)

    def _ran_out(self, device: int, asked: int, used: int, free: int) -> None:
        # runs inside the failing allocation, whose error must not be replaced by another
        file = self._file
        if file is None:
            return
        with contextlib.suppress(OSError, RuntimeError, MemoryError):
            if file.parent.parent.is_dir():
                file.parent.mkdir(exist_ok=True)
                self._dump(str(file))
