"""`plimsoll trial`: one run of one plan, without Ray."""

import json
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.console import print_line
from orchestrator.cli.options import Json, SpecPath, TrustedModules
from orchestrator.cli.result import Result
from search_spaces.errors import PlanError, UserError
from search_spaces.plan import Plan
from search_spaces.safety.files import MIB, is_file, read_bounded
from search_spaces.specification.load import load_spec
from search_spaces.trial import Crashed, Measured, Outcome, outcome_to_json
from workers.models.trust import trust_modules


def trial(
    spec_path: SpecPath,
    plan: Annotated[Path, typer.Option("--plan", metavar="PLAN")],
    validation: Annotated[bool, typer.Option("--validation")] = False,
    trusted: TrustedModules = None,
    as_json: Json = False,
) -> Result | None:
    """Run one plan without Ray, alone or under torchrun, and report its outcome."""
    trust_modules(trusted or ())
    spec = load_spec(spec_path)
    knobs = read_plan(plan)

    from workers.local import run_standalone

    outcome = run_standalone(spec, knobs, validation=validation)
    if outcome is None:  # rank 0 reports for all ranks
        return None
    if not as_json:
        _show(outcome)
    return Result(kind="trial", content=lambda: outcome_to_json(outcome))


def _show(outcome: Outcome) -> None:
    from orchestrator.report.format import gib
    from orchestrator.report.labels import outcome_words

    if isinstance(outcome, Crashed) and outcome.trace:
        print_line(outcome.trace.rstrip())
    print_line(outcome_words(outcome))
    if isinstance(outcome, Measured):
        memory = outcome.memory
        share = f"{100 * memory.share:.0f} % of the limit"
        print_line(f"peak {gib(memory.peak_bytes)} GiB, {share}; --json prints all measurements")


def plan_in_file(text: str) -> Plan | None:
    """Returns the plan in the JSON file that --plan names; None if it names no file."""
    path = Path(text)
    return read_plan(path) if path.suffix == ".json" or is_file(path) else None


def read_plan(path: Path) -> Plan:
    """Returns the plan in a JSON file.

    Raises:
        UserError: If the file is missing or holds no plan.
    """
    try:
        knobs = json.loads(read_bounded(path, MIB).decode("utf-8-sig"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise UserError(f"{path} is not JSON: {error.msg} in {where}") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, a null byte, endless numbers
        raise UserError(f"{path} is not JSON: {error}") from None
    if not isinstance(knobs, dict):
        raise UserError(f"{path} is not a plan: must be an object of knobs")
    try:
        return Plan.from_dict(knobs)
    except PlanError as error:
        raise UserError(f"{path}: {error}") from None
