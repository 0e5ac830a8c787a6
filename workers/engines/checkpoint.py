"""Checkpoints of a validation: a temporary folder, and a rank's shard in it."""

import contextlib
import errno
import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from search_spaces.specification.schema import GIB, SweepSpec
from workers.plain_torch.slices import local_tensor

_NAME, _LOCK = "plimsoll-checkpoint", ".lock"
# texts of torch's writer, which does not name a full disk as the cause
_TORCH_WRITER = ("PytorchStreamWriter", "inline_container")
_FILE = "shard.pt"


@contextlib.contextmanager
def checkpoint_folder(spec: SweepSpec) -> Iterator[Path]:
    """Yields an empty folder for this process, and deletes it at the end of the context.

    It first deletes folders of processes that were killed while they wrote: they may be what
    fills the disk.

    Raises:
        OSError: If the folder cannot be written; names it.
    """
    parent = _parent(spec)
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(parent)
        folder = parent / f"{_NAME}-{uuid4().hex}"
        with _owned(folder):
            folder.mkdir(mode=0o700)
            yield folder
    except OSError as error:
        if error.filename is not None:
            raise
        raise _write_error(error, parent) from error
    except RuntimeError as error:
        if not any(phrase in str(error) for phrase in _TORCH_WRITER):
            raise
        # the context is the original error if torch wrote through a Python file
        raise _write_error(error.__context__, parent) from error


@contextlib.contextmanager
def _owned(folder: Path) -> Iterator[None]:
    """Holds the lock beside a folder, and deletes both at the end.

    The kernel knows who lives, in all containers that share the folder: process ids do not tell.
    """
    lock = folder.with_suffix(_LOCK)
    with lock.open("wb") as file:
        with contextlib.suppress(OSError):  # a file system without locks, where nobody takes it
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)


def _remove_abandoned(parent: Path) -> None:
    """Deletes the folders of processes that have ended without doing so."""
    for lock in parent.glob(f"{_NAME}-*{_LOCK}"):
        with contextlib.suppress(OSError), lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if its process lives
            if (folder := lock.with_suffix("")).is_dir():
                shutil.rmtree(folder, ignore_errors=True)
                lock.unlink(missing_ok=True)


def bytes_in(folder: Path) -> int:
    """Returns the size of all files in a folder, in bytes."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _write_error(error: BaseException | None, folder: Path) -> OSError:
    if isinstance(error, OSError) and error.errno is not None:
        return OSError(error.errno, error.strerror, str(folder))
    free = shutil.disk_usage(folder).free / GIB
    message = f"torch could not write the checkpoint; {free:.1f} GiB are free"
    return OSError(errno.EIO, message, str(folder))


def _parent(spec: SweepSpec) -> Path:
    if spec.validation.folder is not None:
        return Path(spec.validation.folder)
    study = Path(spec.study.folder)
    return study if study.is_dir() else Path(tempfile.gettempdir())


def write_shard(module: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Writes this rank's shards of a model and its optimizer, without communication.

    Raises:
        OSError: If the folder cannot be written.
    """
    states = {"model": module.state_dict(), "optimizer": optimizer.state_dict()}
    # through a Python file: torch's own writer does not name a full disk as the cause
    with (folder / _FILE).open("wb") as file:
        torch.save(tree_map_only(DTensor, local_tensor, states), file)
