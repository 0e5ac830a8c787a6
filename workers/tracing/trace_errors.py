"""Messages of errors in a trace, with their remedies."""

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

_USERS_REMEDY = (
    'register a fake implementation with torch.library.register_fake("{name}"), see'
    " https://docs.pytorch.org/docs/stable/library.html"
)
_TORCHS_REMEDY = (
    "wrap the code that calls it in a custom operator (torch.library.custom_op) and register a"
    " fake implementation of that (torch.library.register_fake)"
)
_NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException)


def untraceable(name: str, failed: StepFailedError) -> ModelError:
    """Makes the error for the user of model `name`, with the operator and a remedy."""
    cause = failed.__cause__
    assert cause is not None
    operator = getattr(cause, "func", None) or failed.operator
    if operator is None:
        return ModelError(f"{name} cannot be traced: its code raises {_summary(cause)}")
    label = str(operator).removesuffix(".default")
    is_users = getattr(operator, "namespace", "aten") not in ("aten", "prims", "_c10d_functional")
    if isinstance(cause, _NEEDS_VALUES):
        reason = "has a result that depends on values, and a trace has none"
    elif is_users or isinstance(cause, UnsupportedOperatorException | NotImplementedError):
        reason = "cannot run without values"
    else:
        return ModelError(f"{name} cannot be traced: operator {label} raises {_summary(cause)}")
    remedy = _USERS_REMEDY.format(name=_qualified_name(operator)) if is_users else _TORCHS_REMEDY
    return ModelError(f"{name} cannot be traced: operator {label} {reason}; {remedy}")


def _summary(cause: BaseException) -> str:
    return f"{type(cause).__name__}: {one_sentence(cause)}"


def _qualified_name(operator: Any) -> str:
    schema = getattr(operator, "_schema", None)
    return str(schema.name) if schema is not None else str(operator)
