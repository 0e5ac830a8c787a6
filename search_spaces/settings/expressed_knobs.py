"""Declarations of the knobs that a trainer expresses; other knobs must be at their default.

A trainer that does not know a knob declares nothing of it, so a plan that needs the knob is refused
and never exported without it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from search_spaces.plan import DEFAULTS, Engine, Plan
from search_spaces.safety.files import packaged_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The values of a knob that a trainer expresses, and the reason why it expresses no others."""

    knob: str
    values: tuple[Any, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpressedKnobs:
    """Knobs that a trainer expresses in plans of an engine.

    Attributes:
        engine: The engine of the plans.
        written: Knobs that the files, the command or its environment set.
        in_caveats: Knobs that a caveat leaves to the user, by value, whether written too or not.
        limits: Knobs of which the trainer expresses some values only.
    """

    engine: Engine
    written: tuple[str, ...]
    in_caveats: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()

    def __post_init__(self) -> None:
        limited = tuple(limit.knob for limit in self.limits)
        unknown = {*self.declared, *limited} - {field.name for field in fields(Plan)}
        assert not unknown, f"{sorted(unknown)} are not knobs of a plan"
        for names in (self.written, self.in_caveats, limited):
            assert len(set(names)) == len(names), f"a knob is declared twice: {names}"

    @property
    def declared(self) -> frozenset[str]:
        """The knobs that the trainer expresses, whole or in part."""
        return frozenset({"engine", *self.written, *self.in_caveats})

    def refusals(self, plan: Plan) -> Iterator[str]:
        """Yields a sentence for each knob of a plan of the engine that cannot be expressed."""
        for field in fields(plan):
            if reason := self.refusal(field.name, getattr(plan, field.name), field.default):
                yield reason

    def refusal(self, knob: str, value: Any, default: Any = None) -> str | None:
        """Returns a sentence if the trainer cannot express a value of a knob.

        It starts with the knob and its value: `tensor is 2: splitting blocks takes ...`.

        Args:
            knob: Name of the knob.
            value: Its value.
            default: Its default, which needs no declaration; if None, that of `Plan`.
        """
        limit = next((limit for limit in self.limits if limit.knob == knob), None)
        default = DEFAULTS.get(knob) if default is None else default
        if value in limit.values if limit else knob in self.declared or value == default:
            return None
        words = f"{knob} is {str(value).lower() if isinstance(value, bool) else value}"
        return words if limit is None else f"{words}: {limit.reason}"


def expressed_knobs() -> Mapping[str, tuple[ExpressedKnobs, ...]]:
    """Returns the knobs that each trainer expresses, for each engine that it supports."""
    return {
        trainer: tuple(_knobs(engine, lists) for engine, lists in engines.items())
        for trainer, engines in packaged_table(__package__, "expressed_knobs.yaml").items()
    }


def _knobs(engine: Engine, lists: Mapping[str, Any]) -> ExpressedKnobs:
    limits = (Limit(**one | {"values": tuple(one["values"])}) for one in _flat(lists["limits"]))
    written, in_caveats = (tuple(_flat(lists[name])) for name in ("written", "in_caveats"))
    return ExpressedKnobs(
        engine=engine, written=written, in_caveats=in_caveats, limits=tuple(limits)
    )


def _flat(entries: Any) -> Iterator[Any]:
    for entry in entries:
        yield from _flat(entry) if isinstance(entry, list) else (entry,)
