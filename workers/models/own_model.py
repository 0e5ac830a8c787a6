"""Models and data that a user's program holds: joined to one function, and written to a folder.

The file's name is a digest of code and data without what differs between two runs of a program:
places of the code, and cloudpickle's own ids.
"""

import hashlib
import inspect
import io
import pickle
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

import cloudpickle
import torch
from torch import nn
from torch.utils.data import DataLoader, default_collate

from search_spaces.errors import DataError, ModelError, written
from search_spaces.safety.files import write_durably
from search_spaces.specification.schema import PICKLE
from workers.data.user_batches import batch_tensors, inputs_of
from workers.models.user_code import error_summary

MAX_BYTES = 64 * 2**20  # each rank holds them, and each worker group is sent them
_COMPARED = 32  # samples, before any trial
_TRACKER_ID = re.compile(rb"[0-9a-f]{32}")  # cloudpickle's, of classes: drawn in each process


@dataclass(frozen=True, slots=True)
class _SampleBatches:
    samples: Any
    collate: Callable[[list[Any]], Any]
    source: str  # for messages

    def __len__(self) -> int:
        return len(self.samples)

    def __call__(self, numbers: tuple[int, ...]) -> Any:
        return self.collate([self.samples[number] for number in numbers])


def save_model(model: Callable[..., Any], data: Any, label: str, folder: Path) -> str:
    """Writes a model, and all that it needs of `__main__`; returns its name for `model.name`.

    It makes a module; a function without data makes a batch maker too. Data is a function of sample
    numbers that makes a batch, samples, or a DataLoader of them. `label` is for messages.

    Raises:
        UserError: If model or data are none of these or too large, or cannot be written.
    """
    if isinstance(model, nn.Module):
        raise ModelError(
            f"model is a {type(model).__name__}, must be its class or a function that makes it:"
            " every trial builds a new one"
        )
    if data is not None or isinstance(model, type):
        model = partial(_made, model, _batches(data, label))
    try:
        content = cloudpickle.dumps(model)
        if (size := len(content)) > MAX_BYTES:
            raise ValueError(f"its pickle has {size >> 20} of at most {MAX_BYTES >> 20} MiB")
        file = folder / f"{_digest(model)}{PICKLE}"
    except (pickle.PicklingError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise ModelError(
            f"model {label} cannot be sent to other processes: {error_summary(error)}; make in the"
            " function, or read from a file there, what cannot be pickled or is large"
        ) from error
    with written(file):
        write_durably(file, content)
    return f"{file}:{label}"


def _batches(data: Any, label: str) -> Callable[..., Any]:
    if callable(data) and not isinstance(data, type):
        return data
    samples = data.dataset if isinstance(data, DataLoader) else data
    of = "" if samples is data else f"{type(data).__name__} of "
    kind = f"{of}{type(samples).__name__}"
    if isinstance(data, Mapping | type | None):
        kind = "files or lengths" if isinstance(data, Mapping) else "a class" if data else "missing"
    elif hasattr(samples, "__getitem__") and hasattr(samples, "__len__"):
        if len(samples):
            collate = data.collate_fn if of else _stacked
            return _SampleBatches(samples, collate, kind if of else f"{kind} in memory")
        kind = f"an empty {kind}"
    raise DataError(
        f"data is {kind}: {label} trains on samples that have numbers (a list, a Dataset, a"
        " DataLoader of one), or on batches of a function of sample numbers"
    )


def _made(model: Callable[..., Any], batches: Any, **config: Any) -> tuple[nn.Module, Any]:
    module = model(**config)
    if not isinstance(module, nn.Module):
        raise ModelError(
            f"the model made {type(module).__name__}, must make an nn.Module; a function that"
            " returns (module, batch maker) is given without data"
        )
    if isinstance(batches, _SampleBatches):
        batch = inputs_of(module, batches(tuple(range(min(len(batches), _COMPARED)))))
        try:
            (signature := inspect.signature(module.forward)).bind(**batch)
        except TypeError as error:
            raise DataError(f"samples do not fit the model's forward{signature}: {error}") from None
    return module, batches


def _stacked(samples: list[Any]) -> Any:
    must_be = (
        "they must be mappings of the module's keyword arguments to numbers or tensors of one"
        " shape; or give a DataLoader, whose collate_fn makes batches"
    )
    if not isinstance(samples[0], Mapping):
        kind = type(samples[0]).__name__
        raise DataError(f"samples of data make no batch (they are of type {kind}): {must_be}")
    try:
        with torch.device("cpu"):  # where the samples' own tensors are
            return default_collate([batch_tensors(sample) for sample in samples])
    except (KeyError, ModelError, RuntimeError, TypeError) as error:
        raise DataError(
            f"samples of data make no batch ({error_summary(error)}): {must_be}"
        ) from error


class _IdentityPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles code without its places, and tensors by their values; nothing can load it."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, CodeType):
            # the order of a set's texts differs between processes
            sets = [sorted(map(repr, one)) for one in obj.co_consts if isinstance(one, frozenset)]
            values = [one for one in obj.co_consts if not isinstance(one, frozenset)]
            names = (obj.co_names, obj.co_varnames, obj.co_freevars, obj.co_flags)
            return tuple, ((obj.co_code, sets, values, names),)
        if isinstance(obj, torch.Tensor):
            content = obj.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            return tuple, ((str(obj.dtype), tuple(obj.shape), content.tobytes()),)
        return super().reducer_override(obj)


def _digest(function: Callable[..., Any]) -> str:
    buffer = io.BytesIO()
    _IdentityPickler(buffer).dump(function)
    program = getattr(sys.modules["__main__"], "__file__", None) or "\n"
    content = _TRACKER_ID.sub(b"", buffer.getvalue().replace(program.encode(), b""))
    return hashlib.sha256(content).hexdigest()[:16]
