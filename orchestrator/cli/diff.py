"""`plimsoll diff`: two plans of a study, or two studies, beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.console import page, say, write_text
from orchestrator.latest import spec_and_name
from orchestrator.stored import load_state
from search_spaces.errors import UserError

if TYPE_CHECKING:
    from orchestrator.comparing import PlansCompared, StudiesCompared


def diff(
    studies: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[A] [B]",
            help="Studies: specifications, folders or names of studies, SQLite files of studies.",
        ),
    ] = None,
    plans: Annotated[
        tuple[int, int] | None,
        typer.Option(metavar="N M", help="Two trials of the one study A, else of the latest here."),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Where to write JSON.")
    ] = None,
) -> None:
    """Say what differs between two plans of a study, or between two studies."""
    named = studies or []
    told = _plans(named, plans) if plans else _studies(named)

    from orchestrator.comparing import (
        PlansCompared,
        comparison_to_json,
        render_plans,
        render_studies,
    )

    shown = render_plans(told) if isinstance(told, PlansCompared) else render_studies(told)
    page().print(shown)
    if json_file is not None:
        write_text(json_file, comparison_to_json(told))
        say(f"written: {json_file}")


def _plans(named: list[str], numbers: tuple[int, int]) -> PlansCompared:
    from orchestrator.comparing import plans_compared, side_of

    if len(named) > 1:
        raise UserError("--plans compares two trials of one study: name one study, or none")
    if named:
        spec, name, _ = side_of(named[0])
    else:
        spec, name = spec_and_name(None)
    return plans_compared(load_state(spec, name), numbers)


def _studies(named: list[str]) -> StudiesCompared:
    from orchestrator.comparing import side_of, studies_compared

    if len(named) != 2:
        raise UserError(
            f"two studies are compared, and {len(named)} named: give A and B, or --plans N M"
            " for two trials of one study"
        )
    (first, name, note), (second, other, more) = (side_of(one) for one in named)
    return studies_compared(load_state(first, name), load_state(second, other), (note, more))
