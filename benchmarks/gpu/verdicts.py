"""Verdicts: what was to be reached, what was, and whether that holds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One target; `reached` and `holds` are None where too little was measured to judge it."""

    what: str
    asked: str
    reached: str | None
    holds: bool | None

    def as_dict(self) -> dict[str, Any]:
        """Returns the verdict as JSON has it."""
        return asdict(self)


def at_most(what: str, asked: float, reached: float | None, form: str = "{:.1%}") -> Verdict:
    """A figure that is to stay below another; None where it is not known."""
    return Verdict(
        what=what,
        asked=f"below {form.format(asked)}",
        reached=None if reached is None else form.format(reached),
        holds=None if reached is None else reached < asked,
    )


def at_least(what: str, asked: float, reached: float | None, form: str = "{:.2f}") -> Verdict:
    """A figure that is to be as large as another; None where it is not known."""
    return Verdict(
        what=what,
        asked=f"{form.format(asked)} or more",
        reached=None if reached is None else form.format(reached),
        holds=None if reached is None else reached >= asked,
    )
