"""Forecasts of all plans that later steps run, written first; and plans of two more models."""

from collections.abc import Iterator

from benchmarks.gpu.cases import (
    BASELINE,
    GPT2_XL,
    LLAMA_1B,
    LLAMA_3B,
    Case,
    balanced,
    reference,
    winner,
)
from benchmarks.gpu.ceilings import device_of
from benchmarks.gpu.judge import workload
from benchmarks.gpu.run import Run
from benchmarks.space import space_of
from orchestrator.report.labels import plan_words
from search_spaces.costs.calibration import shipped_calibration
from search_spaces.costs.forecast import forecast
from search_spaces.plan import Plan
from search_spaces.specification.schema import SweepSpec

PLANS, TINY_PLANS = 8, 4  # of each model; some are meant to run out of memory
_OTHERS = (GPT2_XL, LLAMA_3B)


def chosen(case: Case, *, tiny: bool) -> tuple[SweepSpec, tuple[Plan, ...]]:
    """The plans of a model to measure, in which every value of every knob has its share."""
    spec = case.spec(tiny=tiny)
    seed = _OTHERS.index(case)
    return spec, balanced(space_of(spec).table, TINY_PLANS if tiny else PLANS, seed)


def later(*, tiny: bool) -> Iterator[tuple[SweepSpec, tuple[Plan, ...]]]:
    """The plans of all later steps, by model."""
    known = (winner(tiny=tiny), reference(tiny=tiny), BASELINE)
    pairs = [LLAMA_1B.one_plan(knobs, tiny=tiny) for knobs in known]
    yield pairs[0][0], tuple(dict.fromkeys(plan for _, plan in pairs))
    for case in _OTHERS:
        yield chosen(case, tiny=tiny)


def forecasts(run: Run) -> None:
    """Writes what the shipped calibration expects of each plan on the device just measured."""
    device = device_of(run.out, run.device)
    for spec, plans in later(tiny=run.tiny):
        limit = spec.memory_limit_bytes or device.memory_bytes
        said = forecast(workload(spec, plans, device)[2], shipped_calibration(), float(limit))
        for at, plan in enumerate(plans):
            if run.has(item := f"{spec.model.name} {plan.key}"):
                continue
            figures = {
                "words": plan_words(plan),
                "plan": plan.as_dict(),
                "step_seconds": float(said.step_seconds[at]),
                "peak_bytes": float(said.peak_bytes[at]),
                "fits": float(said.fits[at]),
                "limited_by": said.limited_by(at),
            }
            run.write(item, figures)


def measure(run: Run) -> None:
    """Measures each plan that has no result yet, model after model."""
    for case in _OTHERS:  # a worker serves one model
        spec, plans = chosen(case, tiny=run.tiny)
        for plan in plans:
            if not run.has(item := f"{case.name} {plan.key}"):
                run.trial(item, spec, plan, way=case.name)
