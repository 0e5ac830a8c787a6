"""The `space` section of a specification, made from `Plan`: the values of each knob to search."""

from __future__ import annotations

from collections.abc import Iterator
from types import GenericAlias
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from pydantic import Field, create_model

from search_spaces.plan import COUNTS, Plan
from search_spaces.specification.sections import Count, SpecSection

_MOST_LOADERS, _MOST_TOKENS = 64, 1_000_000_000
_Ratio = Annotated[float, Field(ge=0, le=1)]


class KnobValues(SpecSection):
    """Values to search, a list for each knob; Plimsoll chooses for knobs that are unset."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> tuple[Any, ...] | None: ...


def _keys() -> Iterator[tuple[str, Any]]:
    """Yields each field of a plan that can be searched: a list of its type.

    `accumulation` cannot: it follows from other knobs.
    """
    for name, hint in get_type_hints(Plan).items():
        if name != "accumulation":
            values = GenericAlias(tuple, (_value_type(name, hint), ...))
            yield name, (values | None, Field(default=None, min_length=1))


def _value_type(name: str, hint: Any) -> Any:
    if hint is float:
        return _Ratio
    if name not in COUNTS:
        return hint
    most = _MOST_TOKENS if name == "micro_batch_tokens" else _MOST_LOADERS
    return Count if COUNTS[name] else Annotated[int, Field(ge=0, le=most)]


if TYPE_CHECKING:
    SpaceSpec = KnobValues
else:
    SpaceSpec = create_model(
        "SpaceSpec",
        __base__=KnobValues,
        __doc__=KnobValues.__doc__,
        __module__=__name__,
        **dict(_keys()),
    )
