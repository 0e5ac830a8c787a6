"""`plimsoll plan`: what is expected, before anything runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from orchestrator.cli.console import SpecPath, page, say, say_error
from orchestrator.cli.trial import read_plan
from search_spaces.errors import UserError
from search_spaces.spec.load import load_spec, study_name

if TYPE_CHECKING:
    from orchestrator.planning import Planned, Planner
    from search_spaces.forecast.belief import Belief
    from search_spaces.hardware import Device
    from search_spaces.plan import Plan

EXIT_NOTHING_FITS = 1
_NUMBER_DIGITS = 4  # a key has more
_Number = TypeVar("_Number", int, float)

_Gpu = Annotated[
    str | None, typer.Option(metavar="NAME", help="The GPU: H100, A100-40, RTX 4090 ...")
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
_Explain = Annotated[
    str | None,
    typer.Option(
        metavar="PLAN",
        help="Show one plan's arithmetic: its number in the table, its key, or a JSON file.",
    ),
]
_Top = Annotated[int, typer.Option(min=1, max=1000, help="How many of the best plans to show.")]
_Records = Annotated[
    str | None,
    typer.Option(metavar="STUDY", help="Learn from a study: its specification or its name."),
]
_Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Where to write JSON.")]
_Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Where to write the page of charts.")
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
    explain: _Explain = None,
    top: _Top = 10,
    records: _Records = None,
    json_file: _Json = None,
    html_file: _Html = None,
    device_file: _DeviceFile = None,
) -> None:
    """Forecast every legal plan on GPUs that need not be here: speed, memory, what to take."""
    began = time.perf_counter()
    spec = load_spec(spec_path)
    ranks = _numbers(gpus, int, "--gpus")
    memory_gib = _numbers(memory, float, "--memory")

    from orchestrator.planning import (
        Footprints,
        Planner,
        device_of,
        question_of,
        render_planned,
        size_names,
        write_planned,
    )
    from search_spaces.forecast.belief import shipped_belief
    from workers.models import describe

    device = device_of(spec, name=gpu, file=device_file, devices_per_node=gpus_per_node)
    question = question_of(
        spec,
        describe(spec.model, spec.train),
        device,
        ranks=ranks,
        memory_gib=memory_gib,
        price_per_hour=price,
        top=top,
    )
    belief = shipped_belief()
    if records is not None:
        belief = _learned(belief, records, device)
    planner = Planner(question, Footprints(spec, question.kind), belief, size_names(spec))
    planned = planner.plan(began)
    page().print(render_planned(planned))
    if explain is not None:
        _explain(planner, planned, explain)
    folder = Path(spec.study.folder) / study_name(spec, spec_path)
    written = write_planned(
        planned, json_file or folder / "plan.json", html_file or folder / "plan.html"
    )
    say(f"written: {' and '.join(str(path) for path in written)}")
    if planned.best is None:
        say_error(_nothing(planned))
        raise typer.Exit(EXIT_NOTHING_FITS)


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


def _learned(belief: Belief, named: str, planned_for: Device) -> Belief:
    from orchestrator.planning import learned_from_study, study_device, study_named
    from orchestrator.study import load_records

    spec, name = study_named(named)
    records = load_records(spec, name)
    device = study_device(spec, records)
    if device.name != planned_for.name:
        say(
            f"note: study {name} ran on {device.name}: what it teaches of {planned_for.name} is"
            " less sure than the intervals say",
            style="yellow",
        )
    return learned_from_study(belief, spec, records, device)


def _explain(planner: Planner, planned: Planned, named: str) -> None:
    from orchestrator.planning import render_explained

    page().print(render_explained(planner.explain(_plan_named(planner, planned, named))))


def _plan_named(planner: Planner, planned: Planned, named: str) -> Plan:
    """The plan that --explain means.

    Raises:
        UserError: If there is none.
    """
    shown = planned.answer.best
    if named.isdecimal() and len(named) <= _NUMBER_DIGITS:
        if 1 <= int(named) <= len(shown):
            return shown[int(named) - 1].plan
        raise UserError(f"--explain is {named}: the table has plans 1 to {len(shown)}")
    if Path(named).suffix == ".json" or Path(named).is_file():
        return read_plan(Path(named))
    found = planner.plan_with_key(named)
    if found is None:
        raise UserError(
            f"--explain is {named!r}: no legal plan has this key; give a number of the table, a key"
            " or a JSON file of knobs"
        )
    return found


def _nothing(planned: Planned) -> str:
    from orchestrator.planning import answer_sentence, enough_sentence

    return f"{answer_sentence(planned)}; {enough_sentence(planned)}"
