"""What all sections of a specification have in common."""

from __future__ import annotations

from typing import Annotated

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
