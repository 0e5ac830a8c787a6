"""A folder for a rank's part of a checkpoint, which is removed again."""

from __future__ import annotations

import contextlib
import errno
import platform
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from search_spaces.spec.schema import GIB, SweepSpec
from workers.engines.optimizer_step import local_tensor

_NAME = "plimsoll-checkpoint"
# texts of torch's writer, which says of a full disk no more than where it stopped
_TORCH_WRITER = ("PytorchStreamWriter", "inline_container")
_FILE = "shard.pt"


@contextlib.contextmanager
def checkpoint_folder(spec: SweepSpec) -> Iterator[Path]:
    """An empty folder of this process alone, gone with all that is in it when the context is left.

    What processes left here that were killed while they wrote is removed first: it may be what
    fills the disk.

    Raises:
        OSError: If nothing can be written there; names the folder.
    """
    parent = _parent(spec)
    mine = f"{_NAME}-{platform.node()}-"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for left in parent.glob(f"{mine}*"):
            process = left.name.removeprefix(mine).partition("-")[0]
            if process.isdigit() and not psutil.pid_exists(int(process)):
                shutil.rmtree(left, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{mine}{psutil.Process().pid}-", dir=parent))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        if error.filename is not None:
            raise
        raise _told(error, parent) from error
    except RuntimeError as error:
        if not any(phrase in str(error) for phrase in _TORCH_WRITER):
            raise
        raise _told(error.__context__, parent) from error  # what it met, if a file of Python's was


def bytes_in(folder: Path) -> int:
    """What lies in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _told(error: BaseException | None, folder: Path) -> OSError:
    """An error of writing that names the folder, and says what it can."""
    if isinstance(error, OSError) and error.errno is not None:
        return OSError(error.errno, error.strerror, str(folder))
    free = shutil.disk_usage(folder).free / GIB
    said = f"torch could not write the checkpoint, {free:.1f} GiB are free"
    return OSError(errno.EIO, said, str(folder))


def _parent(spec: SweepSpec) -> Path:
    if spec.validation.folder is not None:
        return Path(spec.validation.folder)
    study = Path(spec.study.folder)
    return study if study.is_dir() else Path(tempfile.gettempdir())


def write_shard(module: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Writes what this rank holds of a model and its optimizer; talks to no other rank.

    Raises:
        OSError: If the folder cannot be written.
    """
    states = {"model": module.state_dict(), "optimizer": optimizer.state_dict()}
    # through a file of Python's: torch's own writer says of a full disk only where it stopped
    with (folder / _FILE).open("wb") as file:
        torch.save(tree_map_only(DTensor, local_tensor, states), file)
