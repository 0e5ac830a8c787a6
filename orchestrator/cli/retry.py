"""`plimsoll retry`: plans that count as failed may run again."""

from collections.abc import Sequence
from typing import Annotated

import typer

from orchestrator.cli.console import print_error, print_line
from orchestrator.cli.options import Json, StudyName, named_study
from orchestrator.cli.result import Result
from orchestrator.core.reasons import measures_again
from orchestrator.core.records import Record
from search_spaces.errors import UserError
from search_spaces.trial import Crashed, Measured

_Trials = Annotated[list[int] | None, typer.Option("--trial", metavar="N", min=0)]
_Crashed = Annotated[bool, typer.Option("--crashed")]


def retry(
    study: StudyName = None,
    trials: _Trials = None,
    crashed: _Crashed = False,
    as_json: Json = False,
) -> Result:
    """Let plans run again that count as failed, once the cause is mended."""
    if not trials and not crashed:
        raise UserError("retry: say which with --trial N, or --crashed for all that crashed")
    named = named_study(study)
    spec, name = named.spec, named.name

    from orchestrator.study.locks import exclusive_driver
    from orchestrator.study.reader import load_records
    from orchestrator.study.study import take_back

    with exclusive_driver(spec, name, print_error) as lock:
        chosen = _chosen(load_records(spec, name), trials or (), crashed=crashed)
        if chosen:
            take_back(spec, name, chosen, lock)
    numbers = ", ".join(map(str, chosen))
    if not as_json:
        print_line(
            f"The plans of trials {numbers} of {name} count as untried; plimsoll tune may run them."
            if chosen
            else f"No trial of {name} crashed."
        )
    content = {"study": name, "trials": list(chosen)}
    return Result(kind="retry", content=lambda: content)


def _chosen(records: Sequence[Record], trials: Sequence[int], *, crashed: bool) -> tuple[int, ...]:
    by_number = {record.number: record for record in records if not measures_again(record.reason)}
    for number in trials:
        if number not in by_number:
            raise UserError(f"--trial {number}: the study has no such trial with a result")
        if isinstance(by_number[number].outcome, Measured):
            raise UserError(f"--trial {number}: it did not fail, its plan was measured")
    failed = [one.number for one in by_number.values() if isinstance(one.outcome, Crashed)]
    return tuple(sorted({*trials, *(failed if crashed else ())}))
