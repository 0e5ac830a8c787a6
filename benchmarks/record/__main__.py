"""Measures every legal plan of a specification into a table; resumes where an earlier run stopped.

python -m benchmarks.record SPEC [--out FILE] [--repeats N] [--limit N] [--best N]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.record.run import Request, record_plans
from orchestrator.cli.exit_codes import ExitCode
from search_spaces.errors import UserError
from search_spaces.spec.load import load_spec, study_name


def main(arguments: Sequence[str] | None = None) -> int:
    """Records; returns an exit code, 2 for what a user caused and 130 after a stop."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("spec", type=Path)
    parser.add_argument("--out", type=Path, help="table (.csv); else in the study's folder")
    parser.add_argument("--repeats", type=int, default=3, help="measurements per plan (3)")
    parser.add_argument("--limit", type=int, help="measure a sample of N plans")
    parser.add_argument("--best", type=int, help="repeat only the N fastest plans")
    given = parser.parse_args(arguments)
    try:
        spec = load_spec(given.spec)
        name = study_name(spec, given.spec)
        request = Request(
            spec=spec,
            name=name,
            table=given.out or Path(spec.study.folder) / name / "surface.csv",
            repeats=given.repeats,
            limit=given.limit,
            best=given.best,
        )
        rows = record_plans(request)
    except UserError as error:
        print(error, file=sys.stderr)
        return ExitCode.USER_ERROR
    except KeyboardInterrupt:
        print("Stopped. All rows are kept; run the same command to resume.", file=sys.stderr)
        return ExitCode.INTERRUPTED
    print(f"written: {request.table}, {rows:,} rows")
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main())
