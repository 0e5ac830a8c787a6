"""`plimsoll trial`: one plan, without Ray."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.console import SpecPath
from search_spaces.errors import PlanError, UserError
from search_spaces.outcome import outcome_to_json
from search_spaces.plan import Plan
from search_spaces.spec.load import load_spec


def trial(
    spec_path: SpecPath,
    plan: Annotated[
        Path, typer.Option("--plan", metavar="FILE", help="The plan, a JSON file of its knobs.")
    ],
    proof: Annotated[
        bool, typer.Option("--proof", help="As a proof: longer, with evaluation and checkpoint.")
    ] = False,
) -> None:
    """Run one plan without Ray, alone or under torchrun, and print how it ended as JSON."""
    spec = load_spec(spec_path)
    asked = read_plan(plan)

    from workers.standalone import run_standalone

    outcome = run_standalone(spec, asked, proof=proof)
    if outcome is not None:  # rank 0 speaks for all
        typer.echo(json.dumps(outcome_to_json(outcome), indent=2))


def read_plan(path: Path) -> Plan:
    """The plan in a JSON file.

    Raises:
        UserError: If there is no such file, or no plan in it.
    """
    try:
        knobs = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise UserError(f"{path} is no JSON: {error.msg} in {where}") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, a null byte, numbers without end
        raise UserError(f"{path} is no JSON: {error}") from None
    if not isinstance(knobs, dict):
        raise UserError(f"{path} is not a plan: must be an object of knobs")
    try:
        return Plan.from_dict(knobs)
    except PlanError as error:
        raise UserError(f"{path}: {error}") from None
