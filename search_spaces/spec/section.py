"""What all sections of a specification have in common."""

from __future__ import annotations

from typing import Annotated, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]  # NumPy takes no larger one
Seconds = Annotated[float, Field(gt=0)]


class Section(BaseModel):
    """A section of the specification: frozen, and with no key that is not known."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=()
    )


def section_of(field: FieldInfo | None) -> type[Section] | None:
    """The section that stands under a key, None if it holds a value."""
    kind = field.annotation if field else None
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def sections_in(field: FieldInfo) -> type[Section] | None:
    """The section that stands under each name of a mapping, None if a key holds no such mapping."""
    kinds = get_args(field.annotation) if get_origin(field.annotation) is dict else ()
    return next(
        (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None
    )
