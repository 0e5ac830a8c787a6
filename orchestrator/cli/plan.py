"""`plimsoll plan`: forecasts of all plans, before anything runs."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.api import find_study
from orchestrator.cli.console import print_error, print_line, table_console, write_text
from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.options import Json, Overrides, SpecPath, TrustedModules
from orchestrator.cli.result import Result, result_to_json
from orchestrator.cli.trial import plan_in_file
from search_spaces.errors import UserError
from search_spaces.specification.load import load_spec, study_name
from workers.models.trust import trust_modules

if TYPE_CHECKING:
    from orchestrator.forecast.planner import LengthResult, Planner, PlanningReport
    from search_spaces.costs.calibration import Calibration
    from search_spaces.hardware.device import Device
    from search_spaces.plan import Plan

_NUMBER_DIGITS = 4  # of a row of the table, at most
_MOST = 10**6  # GPUs

_Gpu = Annotated[str | None, typer.Option(metavar="NAME")]
_Gpus = Annotated[str | None, typer.Option(metavar="N,N,...")]
_PerNode = Annotated[int | None, typer.Option(min=1, metavar="N")]
_Price = Annotated[float | None, typer.Option(min=0, metavar="PRICE")]
_HostMemory = Annotated[
    float | None, typer.Option(min=0, metavar="GIB", show_default="cluster.host_memory_gib")
]
_Plan = Annotated[str | None, typer.Option("--plan", metavar="PLAN")]
_Top = Annotated[int, typer.Option(min=1, max=1000)]
_Records = Annotated[str | None, typer.Option(metavar="STUDY")]
_Longest = Annotated[bool, typer.Option("--longest")]
_Out = Annotated[
    list[Path] | None,
    typer.Option(
        "--out", metavar="FILE", show_default="plan.json and plan.html in the study's folder"
    ),
]


def plan(
    spec_path: SpecPath,
    gpu: _Gpu = None,
    gpus: _Gpus = None,
    gpus_per_node: _PerNode = None,
    host_memory: _HostMemory = None,
    price: _Price = None,
    plan: _Plan = None,
    top: _Top = 10,
    records: _Records = None,
    longest: _Longest = False,
    overrides: Overrides = None,
    trusted: TrustedModules = None,
    out: _Out = None,
    as_json: Json = False,
) -> Result:
    """Predict speed and memory of every legal plan, for GPUs you may not have."""
    began = time.perf_counter()
    trust_modules(trusted or ())
    host = [] if host_memory is None else [f"cluster.host_memory_gib={host_memory}"]
    spec = load_spec(spec_path, [*(overrides or ()), *host])
    files = _files(out or [])
    named = None if plan is None else _number_or_plan(plan)

    from orchestrator.forecast.longest import plan_longest, planner_of
    from orchestrator.forecast.request import device_of
    from orchestrator.report.document import planning_document
    from orchestrator.report.plan_document import plan_document
    from orchestrator.report.plan_text import answer_sentence
    from orchestrator.report.terminal import render_text

    device = device_of(spec, name=gpu, devices_per_node=gpus_per_node)
    make = partial(
        planner_of,
        device=device,
        calibration=_calibration(records, device),
        ranks=_counts(gpus),
        price_per_hour=price,
        top=top,
    )
    if longest or spec.objective.metric == "sequence_length":
        planner, report = plan_longest(spec, make, None if as_json else _print_length)
    else:
        planner = make(spec)
        report = planner.plan(began)
    if not as_json:
        table_console().print(render_text(plan_document(report)))
    if named is not None:
        _explain(planner, report, named)
    if report.best is None:
        print_error(f"{answer_sentence(report)}; --gpus and --gpu forecast more or other devices")
    result = Result(
        kind="plan",
        content=lambda: planning_document(report),
        code=ExitCode.DONE if report.best else ExitCode.NOTHING_FOUND,
    )
    folder = Path(spec.study.folder) / study_name(spec, spec_path)
    default_files = () if as_json else (folder / "plan.json", folder / "plan.html")
    _write(files or default_files, report, result)
    return result


def _print_length(result: LengthResult) -> None:
    print_line(f"{result.tokens:,} tokens: {'no plan fits' if result.best is None else 'fits'}")


def _files(files: list[Path]) -> tuple[Path, ...]:
    for file in files:
        if file.suffix not in (".html", ".json"):
            raise UserError(f"--out {file}: must end with .html, for the page, or .json")
    return tuple(files)


def _write(files: tuple[Path, ...], report: PlanningReport, result: Result) -> None:
    for file in files:
        if file.suffix == ".json":
            write_text(file, result_to_json(result))
        else:
            from orchestrator.report.plan_document import render_plan_page

            write_text(file, render_plan_page(report))
    if files:
        print_line(f"written: {' and '.join(map(str, files))}")


def _counts(text: str | None) -> tuple[int, ...]:
    """Parses the numbers of --gpus, without duplicates and in the order typed."""
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    counts = tuple(dict.fromkeys(int(part) if part.isdecimal() else 0 for part in parts))
    if not all(0 < count <= _MOST for count in counts):
        raise UserError(
            f"--gpus is {text!r}: must be whole numbers above 0, at most {_MOST:,}, separated by"
            " commas"
        )
    return counts


def _calibration(study: str | None, planned_for: Device) -> Calibration:
    from search_spaces.costs.calibration import shipped_calibration

    if study is None:
        return shipped_calibration().for_device(planned_for)
    from orchestrator.forecast.calibration import calibrated_by_study, study_device
    from orchestrator.study.reader import load_state

    named = find_study(study, option="--records")
    spec, name = named.spec, named.name
    state = load_state(spec, name)
    device = study_device(spec, state.records)
    calibration = calibrated_by_study(shipped_calibration(), state, device)
    if device.name != planned_for.name:
        calibration = calibration.for_device(planned_for)
        print_line(
            f"note: study {name} ran on {device.name}: forecasts for {planned_for.name} are less"
            " certain than their intervals suggest",
            style="yellow",
        )
    return calibration


def _number_or_plan(text: str) -> int | Plan:
    """Returns the number in the table that --plan names, or the plan in the file."""
    if text.isdecimal() and len(text) <= _NUMBER_DIGITS:
        return int(text)
    if (plan := plan_in_file(text)) is None:
        raise UserError(
            f"--plan is {text!r}: give a number of the table, or a JSON file of knobs that exists"
        )
    return plan


def _explain(planner: Planner, report: PlanningReport, named: int | Plan) -> None:
    from orchestrator.report.plan_document import render_breakdown

    if isinstance(named, int):
        rows = report.recommendation.best
        if not 1 <= named <= len(rows):
            raise UserError(f"--plan is {named}: the table has plans 1 to {len(rows)}")
        named = rows[named - 1].plan
    table_console().print(render_breakdown(planner.explain(named)))
