"""`plimsoll explain`: why the answer is what it is, and why other plans are not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.console import page, say, say_error, write_text
from orchestrator.latest import spec_and_name
from orchestrator.places import is_file
from orchestrator.stored import load_state
from search_spaces.errors import UserError

if TYPE_CHECKING:
    from orchestrator.core.state import SweepState
    from orchestrator.explaining import Explanation, Ground, Untried

EXIT_NOTHING_WON = 1


def explain(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SPEC]", help="The specification; without it, the latest sweep here."
        ),
    ] = None,
    number: Annotated[
        int | None, typer.Option("--plan", metavar="N", help="What happened to trial N.")
    ] = None,
    knobs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KNOB=VALUE ...", help="Why this plan was not tried; the rest as the winner."
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Where to write JSON.")
    ] = None,
) -> None:
    """Say why the winner won, what happened to a trial, or why a plan was not tried."""
    spec_path, asked = _told_apart(words or [], knobs)
    if number is not None and asked:
        raise UserError("--plan and --knobs are two questions: ask one of them")
    spec, name = spec_and_name(spec_path)

    state = load_state(spec, name)
    explained = _explained(state, number, asked)
    if explained is None:
        from orchestrator.report.sentences import answer

        say_error(f"{answer(state)}; --plan N says what happened to a trial")
        raise typer.Exit(EXIT_NOTHING_WON)
    _show(explained)
    if json_file is not None:
        from orchestrator.explaining import explanation_to_json

        write_text(json_file, explanation_to_json(explained))
        say(f"written: {json_file}")


def _told_apart(words: list[str], knobs: list[str] | None) -> tuple[Path | None, list[str]]:
    """The specification, and the knobs: `--knobs a=1 b=2` leaves b=2 among the words.

    Raises:
        UserError: If there is more than one specification.
    """
    more = [word for word in words if knobs and "=" in word and not is_file(Path(word))]
    paths = [word for word in words if word not in more]
    if len(paths) > 1:
        raise UserError(
            f"one specification is explained, not {' and '.join(paths)};"
            " knobs are asked for by --knobs KNOB=VALUE ..."
        )
    return (Path(paths[0]) if paths else None), [*(knobs or []), *more]


def _explained(state: SweepState, number: int | None, asked: list[str]) -> Explanation | None:
    """The explanation; None if there is no winner to explain."""
    from orchestrator import explaining

    if asked:
        found = _untried(state, asked)
        if found.trial is None or found.verdict != "tried":
            return found
        number = found.trial
        say(found.reasons[0])
    if number is not None:
        record = explaining.trial_named(state, number)
        return explaining.fate(state, record, *_ground(state, record.plan.accelerator))
    best = state.best
    if best is None:
        return None
    return explaining.why_it_won(state, best, *_ground(state, best.plan.accelerator))


def _untried(state: SweepState, asked: list[str]) -> Untried:
    from orchestrator import explaining

    wanted = explaining.knobs_asked(asked)
    like = (state.best or state.records[0]).plan
    kind = wanted.get("accelerator", like.accelerator)
    kinds = state.spec.cluster.accelerators
    if kind not in kinds and (kind or kinds):
        known = ", ".join(kinds) or "none"
        raise UserError(f"--knobs accelerator={kind}: cluster.accelerators has {known}")
    return explaining.why_not_tried(wanted, explaining.ground_of(state, kind))


def _ground(state: SweepState, accelerator: str) -> tuple[Ground | None, str]:
    """What explanations rest on; None and why, if nothing can be forecast here."""
    from orchestrator.explaining import ground_of

    try:
        return ground_of(state, accelerator), ""
    except UserError as error:
        return None, " ".join(str(error).split())


def _show(explained: Explanation) -> None:
    from orchestrator import explaining

    match explained:
        case explaining.Won():
            page().print(explaining.render_won(explained))
        case explaining.Fate():
            page().print(explaining.render_fate(explained))
        case explaining.Untried():
            page().print(explaining.render_untried(explained))
