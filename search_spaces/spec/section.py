"""What all sections of a specification have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]  # NumPy takes no larger one
Seconds = Annotated[float, Field(gt=0)]


class Section(BaseModel):
    """A section of the specification: frozen, and with no key that is not known."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=()
    )
