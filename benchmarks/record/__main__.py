"""Measures every legal plan of a specification into a table.

python -m benchmarks.record sweep.yaml
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from orchestrator.cli.app import run
from orchestrator.cli.check import planned_context
from orchestrator.cli.console import print_error, print_line
from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.options import Json, SpecPath
from orchestrator.cli.result import Result, as_command
from search_spaces.space import build_space
from search_spaces.spec.load import load_spec, study_name

TABLE_FILE = "surface.csv"


def record(
    spec_path: SpecPath,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Table to write, a CSV file.", show_default="in the study's folder"
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Measurements per plan.")] = 3,
    limit: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Measure a sample of N plans.", show_default=False),
    ] = None,
    best: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Repeat only the N fastest plans.", show_default=False
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed for ordering and sampling.")] = 0,
    as_json: Json = False,
) -> Result:
    """Measure every legal plan into a table; resumes where an earlier run stopped."""
    spec = load_spec(spec_path)
    name = study_name(spec, spec_path)
    table = out or Path(spec.study.folder) / name / TABLE_FILE

    from benchmarks.record.run import Request, chosen, record_plans

    asked = Request(
        spec=spec, name=name, table=table, repeats=repeats, limit=limit, best=best, seed=seed
    )
    if spec.cluster.workers != "auto":
        # what is wrong without any cluster, before one starts
        ranks = spec.cluster.workers
        chosen(build_space(planned_context(spec, ranks), ranks), asked)
    try:
        recorded = record_plans(asked, print_line)
    except KeyboardInterrupt:
        print_error("Stopped. All rows are kept; run the same command to resume.")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    if not as_json:
        print_line(f"written: {recorded.table}, {recorded.rows:,} rows of {recorded.plans:,} plans")
    content = {"table": str(recorded.table), "plans": recorded.plans, "rows": recorded.rows}
    return Result(kind="record", content=lambda: content)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command and exits with one of `ExitCode`."""
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command()(as_command(record))
    run(app, arguments, name="python -m benchmarks.record")


if __name__ == "__main__":
    main()
