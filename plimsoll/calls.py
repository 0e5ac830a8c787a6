"""The Python API's calls; their arguments are the keys of a specification (docs/python.md)."""

import logging
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.api import find_study
from orchestrator.core.state import SweepState
from orchestrator.forecast.longest import plan_longest, planner_of, tune_longest
from orchestrator.forecast.request import device_of, understand
from orchestrator.report.document import check_document, planning_document
from orchestrator.report.format import plural
from orchestrator.report.live import PlainView, make_view
from orchestrator.report.plan_document import plan_document, render_plan_page
from orchestrator.report.plan_text import answer_sentence
from orchestrator.report.terminal import labelled_rows, render_text
from orchestrator.report.understood import understood_rows
from plimsoll.arguments import Model, job_of
from plimsoll.results import Report, Sweep, printed
from search_spaces.costs.calibration import shipped_calibration
from search_spaces.errors import require
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Activity, ActivityKind

LOGGER = logging.getLogger("plimsoll")


def tune(
    model: Model | None = None,
    /,
    *,
    data: Any = None,
    global_batch: int | None = None,
    minutes: float | None = None,
    view: bool = True,
    **keys: Any,
) -> Sweep:
    """Searches, measures and ranks plans; the same call resumes a study that was stopped.

    Args:
        model: A preset, a folder, a Hub id or "module:function"; a class of `nn.Module` or a
            function, also of a notebook; or a specification (a YAML file, a mapping, `SweepSpec`).
        data: Files; or samples in memory, with a class also a function of sample numbers.
        global_batch: Samples per optimizer step, the same for every plan.
        minutes: Wall-clock limit.
        view: Shows the progress; False: sends it to the logger `plimsoll`.
        keys: Sections of a specification, or keys that only one section has.

    Raises:
        PlimsollError: If an argument cannot be used, or the study measures another job, such as a
            class with other code.
        KeyboardInterrupt: On Ctrl-C; what was measured is kept.
    """
    require("ray", "optuna", "sqlalchemy")
    keys |= {"data": data, "global_batch": global_batch, "minutes": minutes}
    job = job_of("plimsoll.tune", model, keys)

    def sweep(spec: SweepSpec, name: str) -> SweepState:
        shown = make_view() if view else PlainView(LOGGER.info)
        with closing(shown):
            shown.on_activity(Activity(kind=ActivityKind.READING_MODEL, at=time.time()))
            from orchestrator.sweep import run_sweep  # takes seconds

            return run_sweep(spec, name, [shown])

    if job.spec.objective.metric == "sequence_length":
        state = tune_longest(job.spec, job.name, sweep, print if view else LOGGER.info)
    else:
        state = sweep(job.spec, job.name)
    return Sweep(where=str(Path(job.spec.study.folder, state.study)), state=state)


def plan(
    model: Model | None = None,
    /,
    *,
    top: int = 10,
    gpus: tuple[int, ...] = (),
    longest: bool = False,
    **keys: Any,
) -> Report:
    """Forecasts speed and memory of every legal plan, for GPUs that you may not have.

    Arguments are those of `tune`, such as `gpu="H100"`; `top` is the number of plans to report, and
    `gpus` are numbers of GPUs (by default `workers`, or those of a node). `longest` plans the
    longest sequence that fits.

    Raises:
        PlimsollError: If an argument cannot be used, or no plan is legal.
    """
    spec = job_of("plimsoll.plan", model, keys).spec
    device = device_of(spec, name=None, devices_per_node=None)
    calibration = shipped_calibration().for_device(device)
    make = partial(planner_of, device=device, calibration=calibration, ranks=gpus, top=top)
    by_length = longest or spec.objective.metric == "sequence_length"
    forecasts = plan_longest(spec, make)[1] if by_length else make(spec).plan()
    return Report(
        headline=answer_sentence(forecasts),
        values=planning_document(forecasts),
        text=printed(render_text(plan_document(forecasts))),
        html=render_plan_page(forecasts),
    )


def check(model: Model | None = None, /, **keys: Any) -> Report:
    """Says what is understood of a job and which plans are legal; raises what `plan` does."""
    job = job_of("plimsoll.check", model, keys)
    understanding, space = understand(job.spec)
    return Report(
        headline=f"{job.name} has {plural(len(space.candidates), 'legal plan')}",
        values={"study": job.name, **check_document(job.spec, understanding, space)},
        text=printed(labelled_rows(understood_rows(understanding))),
    )


def open_study(where: str | Path | None = None) -> Sweep:
    """Opens a study by its specification, folder, name or database; None: the latest one here.

    Raises PlimsollError if there is none.
    """
    require("optuna", "sqlalchemy")
    from orchestrator.study.reader import load_state

    study = find_study(None if where is None else str(where))
    folder = Path(study.spec.study.folder, study.name)
    return Sweep(where=str(where or folder), state=load_state(study.spec, study.name))
