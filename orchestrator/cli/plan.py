"""`plimsoll plan`: what is expected, before anything runs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from orchestrator.api import find_study
from orchestrator.cli.completion import complete_gpu, complete_study
from orchestrator.cli.console import page, say, say_error, write_text
from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.options import Json, Overrides, SpecPath
from orchestrator.cli.result import Result, result_to_json
from orchestrator.cli.trial import read_plan
from search_spaces.errors import UserError
from search_spaces.spec.load import load_spec, study_name

if TYPE_CHECKING:
    from orchestrator.forecast.planner import Planner, PlanningReport
    from search_spaces.costs.calibration import Calibration
    from search_spaces.hardware import Device
    from search_spaces.plan import Plan

_NUMBER_DIGITS = 4  # a key has more
_Number = TypeVar("_Number", int, float)

_Gpu = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The GPU: H100, A100-40, RTX 4090 ...",
        autocompletion=complete_gpu,
    ),
]
_Gpus = Annotated[
    str | None, typer.Option(metavar="N,N,...", help="How many; the first is answered in full.")
]
_Memory = Annotated[
    str | None,
    typer.Option(metavar="GIB,GIB,...", help="Device sizes to compare, in GiB of one device."),
]
_PerNode = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="GPUs that fast links join.")
]
_Price = Annotated[
    float | None, typer.Option(min=0, metavar="PRICE", help="Of one GPU for an hour.")
]
_Plan = Annotated[
    str | None,
    typer.Option(
        "--plan",
        metavar="PLAN",
        help="Show one plan's arithmetic: its number in the table, its key, or a JSON file.",
    ),
]
_Top = Annotated[int, typer.Option(min=1, max=1000, help="How many of the best plans to show.")]
_Records = Annotated[
    str | None,
    typer.Option(
        metavar="STUDY",
        help="Learn from a study: its specification, folder, name or database.",
        autocompletion=complete_study,
    ),
]
_Out = Annotated[
    list[Path] | None,
    typer.Option(
        "--out",
        metavar="FILE",
        help="Write to FILE: .html the page of charts, .json JSON; may be given for both.",
        show_default="plan.json and plan.html in the study's folder",
    ),
]
_DeviceFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A YAML file that describes the device.")
]


def plan(
    spec_path: SpecPath,
    gpu: _Gpu = None,
    gpus: _Gpus = None,
    memory: _Memory = None,
    gpus_per_node: _PerNode = None,
    price: _Price = None,
    plan: _Plan = None,
    top: _Top = 10,
    records: _Records = None,
    device_file: _DeviceFile = None,
    overrides: Overrides = None,
    out: _Out = None,
    as_json: Json = False,
) -> Result:
    """Forecast every legal plan on GPUs that need not be here: speed, memory, what to take."""
    began = time.perf_counter()
    spec = load_spec(spec_path, overrides or ())
    files = _files(out or [])
    ranks = _numbers(gpus, int, "--gpus")
    memory_gib = _numbers(memory, float, "--memory")

    from orchestrator.forecast.calibration import Footprints
    from orchestrator.forecast.planner import Planner, planned_to_json
    from orchestrator.forecast.request import device_of, planning_request, size_names
    from orchestrator.report.plan_tables import render_planned
    from search_spaces.costs.calibration import shipped_calibration
    from workers.models.load import describe

    device = device_of(spec, name=gpu, file=device_file, devices_per_node=gpus_per_node)
    question = planning_request(
        spec,
        describe(spec.model, spec.train),
        device,
        ranks=ranks,
        memory_gib=memory_gib,
        price_per_hour=price,
        top=top,
    )
    belief = shipped_calibration()
    if records is not None:
        belief = _learned(belief, records, device)
    planner = Planner(question, Footprints(spec, question.kind), belief, size_names(spec))
    planned = planner.plan(began)
    if not as_json:
        page().print(render_planned(planned))
    if plan is not None:
        _explain(planner, planned, plan)
    if planned.best is None:
        say_error(_nothing(planned))
    result = Result(
        kind="plan",
        content=lambda: json.loads(planned_to_json(planned)),
        code=ExitCode.DONE if planned.best else ExitCode.NOTHING_FOUND,
    )
    folder = Path(spec.study.folder) / study_name(spec, spec_path)
    usual = () if as_json else (folder / "plan.json", folder / "plan.html")
    _write(files or usual, planned, result)
    return result


def _files(named: list[Path]) -> tuple[Path, ...]:
    """The files of `--out`.

    Raises:
        UserError: If an ending says neither page nor JSON.
    """
    for file in named:
        if file.suffix not in (".html", ".json"):
            raise UserError(f"--out {file}: must end with .html, for the page, or .json")
    return tuple(named)


def _write(files: tuple[Path, ...], planned: PlanningReport, result: Result) -> None:
    for file in files:
        if file.suffix == ".json":
            write_text(file, result_to_json(result))
        else:
            from orchestrator.report.plan_page import planned_page

            write_text(file, planned_page(planned))
    if files:
        say(f"written: {' and '.join(map(str, files))}")


def _numbers(text: str | None, kind: Callable[[str], _Number], option: str) -> tuple[_Number, ...]:
    """The numbers of an option, each once, in the order given.

    Raises:
        UserError: If one is no positive number.
    """
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    try:
        numbers = tuple(dict.fromkeys(kind(part) for part in parts))
    except ValueError:
        numbers = ()
    most = 10**6
    if not numbers or not all(0 < number <= most for number in numbers):
        whole = "whole numbers" if kind is int else "numbers"
        raise UserError(
            f"{option} is {text!r}: must be {whole} above 0, at most {most:,}, with commas between"
        )
    return numbers


def _learned(belief: Calibration, named: str, planned_for: Device) -> Calibration:
    from orchestrator.forecast.calibration import calibrated_by_study, study_device
    from orchestrator.study.reader import load_records

    found = find_study(named, option="--records")
    spec, name = found.spec, found.name
    records = load_records(spec, name)
    device = study_device(spec, records)
    if device.name != planned_for.name:
        say(
            f"note: study {name} ran on {device.name}: what it teaches of {planned_for.name} is"
            " less sure than the intervals say",
            style="yellow",
        )
    return calibrated_by_study(belief, spec, records, device)


def _explain(planner: Planner, planned: PlanningReport, named: str) -> None:
    from orchestrator.report.plan_tables import render_explained

    page().print(render_explained(planner.explain(_plan_named(planner, planned, named))))


def _plan_named(planner: Planner, planned: PlanningReport, named: str) -> Plan:
    """The plan that --plan means.

    Raises:
        UserError: If there is none.
    """
    shown = planned.answer.best
    if named.isdecimal() and len(named) <= _NUMBER_DIGITS:
        if 1 <= int(named) <= len(shown):
            return shown[int(named) - 1].plan
        raise UserError(f"--plan is {named}: the table has plans 1 to {len(shown)}")
    if Path(named).suffix == ".json" or Path(named).is_file():
        return read_plan(Path(named))
    found = planner.plan_with_key(named)
    if found is None:
        raise UserError(
            f"--plan is {named!r}: no legal plan has this key; give a number of the table, a key"
            " or a JSON file of knobs"
        )
    return found


def _nothing(planned: PlanningReport) -> str:
    from orchestrator.report.plan_text import answer_sentence, enough_sentence

    return f"{answer_sentence(planned)}; {enough_sentence(planned)}"
