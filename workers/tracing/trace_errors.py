"""Errors of a trace, in one sentence for the user."""

from __future__ import annotations

from typing import Any

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

from search_spaces.errors import ModelError
from workers.models.config import one_sentence
from workers.tracing.step import StepFailedError

_OWN = (
    'give it results without values by torch.library.register_fake("{name}"), as in'
    " https://docs.pytorch.org/docs/stable/library.html"
)


_TORCHS = (
    "put the code that calls it into an operator of its own (torch.library.custom_op) and give"
    " that results without values (torch.library.register_fake)"
)


_VALUES = (DataDependentOutputException, DynamicOutputShapeException)


def untraceable(name: str, failed: StepFailedError) -> ModelError:
    """The error for the user of model `name`."""
    cause = failed.__cause__
    assert cause is not None
    operator = getattr(cause, "func", None) or failed.operator
    if operator is None:
        return ModelError(f"{name} cannot be traced: its code raises {_told(cause)}")
    known = str(operator).removesuffix(".default")
    is_own = getattr(operator, "namespace", "aten") not in ("aten", "prims", "_c10d_functional")
    if isinstance(cause, _VALUES):
        why = "has a result that depends on values, and a trace has none"
    elif is_own or isinstance(cause, UnsupportedOperatorException | NotImplementedError):
        why = "cannot run without values"
    else:
        return ModelError(f"{name} cannot be traced: operator {known} raises {_told(cause)}")
    remedy = _OWN.format(name=_qualified(operator)) if is_own else _TORCHS
    return ModelError(f"{name} cannot be traced: operator {known} {why}; {remedy}")


def _told(cause: BaseException) -> str:
    return f"{type(cause).__name__}: {one_sentence(cause)}"


def _qualified(operator: Any) -> str:
    schema = getattr(operator, "_schema", None)
    return str(schema.name) if schema is not None else str(operator)
