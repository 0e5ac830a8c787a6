"""torch's picture of a GPU's memory at the moment in which a rank ran out of it.

Taken when the allocator gives up, before anything is freed; nothing is recorded before that, so
that steps cost what they cost without. It says which segments there are and what lies in them,
and not who allocated it: a history would take time in each step that is measured.

The file is a pickle, which https://pytorch.org/memory_viz shows. Nothing here reads it.

Source: torch.cuda.memory._dump_snapshot, torch._C._cuda_attachOutOfMemoryObserver (torch 2.13).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

_Observer = Callable[[int, int, int, int], None]  # device, bytes asked for, in use, free


class OomSnapshots:
    """Keeps one for each trial, if told where to; on a CPU there is nothing to picture."""

    def __init__(self, dump: Callable[[str], None] | None = None) -> None:
        """Watches nothing yet.

        Args:
            dump: Writes a snapshot to a file; torch's own if None.
        """
        self._dump = dump or torch.cuda.memory._dump_snapshot
        self._file: Path | None = None

    def watch(self, attach: Callable[[_Observer], None] | None = None) -> None:
        """Has the allocator tell when it gives up; once in a process, for it never stops telling.

        Args:
            attach: Takes the observer; the allocator's own if None.
        """
        attach = attach or getattr(torch._C, "_cuda_attachOutOfMemoryObserver", None)
        if attach is not None:
            attach(self._ran_out)

    @contextlib.contextmanager
    def armed(self, stem: str | None, rank: int) -> Iterator[None]:
        """Within the block, memory that runs out leaves `stem.rank-N.pickle`; None: nothing.

        On a host without the study's folder nothing is left either: nobody would find it.
        """
        self._file = None if stem is None else Path(f"{stem}.rank-{rank}.pickle")
        try:
            yield
        finally:
            self._file = None

    def settle(self, stem: str | None, rank: int, *, kept: bool) -> None:
        """Removes what this rank left, unless it is of the rank that the outcome names."""
        if stem is not None and not kept:
            with contextlib.suppress(OSError):
                Path(f"{stem}.rank-{rank}.pickle").unlink(missing_ok=True)

    def _ran_out(self, device: int, asked: int, used: int, free: int) -> None:
        """Runs inside the allocation that fails: what goes wrong here must not hide that."""
        file = self._file
        if file is None:
            return
        with contextlib.suppress(OSError, RuntimeError, MemoryError):
            if file.parent.parent.is_dir():
                file.parent.mkdir(exist_ok=True)
                self._dump(str(file))
