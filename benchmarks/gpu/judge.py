"""Forecasts of speed and memory against the measured plans of a folder; needs no GPU.

    python -m benchmarks.gpu.judge DIR

The forecasts are those before any trial. Those of speed also after the baseline's trial, after each
five plans and after all plans but one; what was measured is never judged. Beside the reserved peak
of torch's allocator stands what the whole device held, context and libraries included, as its
driver tells.
"""

import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.cases import CASES
from benchmarks.gpu.ceilings import device_of
from benchmarks.gpu.results import Results, number, plan_rows
from benchmarks.published.metrics import (
    RULED_OUT_BELOW,
    kendall_tau,
    median,
    oom_scores,
    percentage_errors,
)
from search_spaces.costs.calibration import shipped_calibration
from search_spaces.costs.footprint import Footprint
from search_spaces.costs.forecast import Forecasts, forecast
from search_spaces.costs.memory import CATEGORIES
from search_spaces.costs.model_work import utilization
from search_spaces.costs.plan_encoding import plan_features, variants_of
from search_spaces.costs.workload import Workload, workload_of
from search_spaces.facts import ModelFacts
from search_spaces.hardware.device import Device
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable
from search_spaces.specification.schema import GIB, SweepSpec
from workers.models.load import describe
from workers.tracing.trace import trace

Numbers = NDArray[np.float64]
TARGETS = {"speed": 0.10, "speed_after": 0.04, "tau": 0.9, "memory": 0.03, "memory_worst": 0.10}
RECORDS, NOISE = 5, 0.03
_ENDED = ("measured", "out_of_memory")  # outcomes that are judged


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forecast:
    """Plans of a model that were measured or ran out of memory, and what was forecast of them."""

    model: str
    rows: tuple[Mapping[str, str], ...]
    facts: ModelFacts
    device: Device
    footprint: Footprint
    work: Workload
    said: Forecasts

    def column(self, name: str) -> Numbers:
        """A column of the table as numbers; nan where nobody knows."""
        return np.array([number(row, name) for row in self.rows])


def forecasts(
    out: Path, rows: Sequence[Mapping[str, str]], *, tiny: bool = False
) -> Iterator[Forecast]:
    """All models that have rows, each with the forecasts that nothing had taught."""
    for case in CASES:
        own = [row for row in rows if row["model"] == case.name and row["outcome"] in _ENDED]
        if not own:
            continue
        device = device_of(out, "cpu" if tiny else own[0]["device"])
        plans = [Plan.from_dict(json.loads(row["plan"])) for row in own]
        spec = case.spec(tiny=tiny)
        facts, footprint, work = workload(spec, plans, device)
        limit = float(np.nanmax([*(number(row, "limit_bytes") for row in own), 0.0]))
        said = forecast(work, shipped_calibration(), limit or float(device.memory_bytes))
        yield Forecast(
            model=case.name,
            rows=tuple(own),
            facts=facts,
            device=device,
            footprint=footprint,
            work=work,
            said=said,
        )


def workload(
    spec: SweepSpec, plans: Iterable[Plan], device: Device
) -> tuple[ModelFacts, Footprint, Workload]:
    """A model, its traced step, and the work of plans on a device."""
    table = PlanTable.of(plans)
    facts = describe(spec.model, spec.train)
    footprint = trace(spec, variants_of(table), device=spec.cluster.device)
    return facts, footprint, workload_of(footprint, device, plan_features(table, facts, footprint))


def judged(models: Sequence[Forecast], *, cuda: bool) -> dict[str, Any]:
    """Errors of all plans together, of each model, and of each plan, the worst first."""
    rows = [row for model in models for row in _rows(model, cuda=cuda)]
    fitting = [row for row in rows if row["outcome"] == "measured"]
    out = [row["outcome"] != "measured" for row in rows]
    speed = {model.model: _speed(model) for model in models}
    return {
        "targets": TARGETS,
        "plans": {"measured": len(fitting), "out_of_memory": sum(out)},
        **{
            name: median([error for one in speed.values() for error in one[name]])
            for name in ("speed", "speed_after", "leave_one_out")
        },
        "reserved": _errors(fitting, "reserved_error"),
        "device": _errors(fitting, "device_error"),
        "by_model": {
            name: {
                **{name: median(errors) for name, errors in one.items() if name != "tau"},
                "tau": one["tau"],
                "device": _errors([r for r in fitting if r["model"] == name], "device_error"),
            }
            for name, one in speed.items()
        },
        "wrongly_impossible": [r["words"] for r in fitting if r["fits"] < RULED_OUT_BELOW],
        "out_of_memory": oom_scores([row["fits"] for row in rows], out),
        "rows": sorted(rows, key=lambda row: -abs(row["device_error"] or 0.0)),
    }


def _rows(model: Forecast, *, cuda: bool) -> Iterator[dict[str, Any]]:
    said, held = model.said.peak_bytes, model.column("held_bytes")
    outside = model.said.categories[:, CATEGORIES.index("outside")]
    inside = said - outside if cuda else said
    reserved, device = model.column("reserved_bytes"), model.column("device_bytes")
    whole, seconds = np.where(np.isfinite(device), device, held), model.column("step_seconds")
    for at, row in enumerate(model.rows):
        yield {
            "model": model.model,
            "words": row["words"],
            "outcome": row["outcome"],
            "fits": float(model.said.fits[at]),
            "forecast_gib": float(said[at]) / GIB,
            "reserved_error": _off(inside[at], reserved[at]),
            "device_error": _off(said[at], whole[at]),
            "speed_error": _off(model.said.step_seconds[at], seconds[at]),
            "limited_by": model.said.limited_by(at),
            **_utilization(model, row),
        }


def _utilization(model: Forecast, row: Mapping[str, str]) -> dict[str, float | None]:
    """Model FLOP/s of a measured plan, and its shares of the device's rates."""
    work, rate = model.footprint.work, number(row, "samples_per_second")
    if work is None or not np.isfinite(rate):
        return {}
    precision = Plan.from_dict(json.loads(row["plan"])).precision
    tokens_per_second = rate * model.footprint.mean_tokens
    used = utilization(work, model.facts, model.device, precision, tokens_per_second)
    flops = work.flops_per_token * tokens_per_second
    fastest = max((p[-1] for p in model.device.matmul_points if p[0] == precision), default=None)
    return {
        "tera_flops_per_second": flops / 1e12,
        "mfu": used.mfu,
        "mfu_of_fastest_matmul": fastest and flops / fastest,
        "mfu_of_data_sheet": flops / model.device.peak_flops_per_second(precision),
        "paper_mfu": used.paper_mfu,
    }


def _off(said: float, truth: float) -> float | None:
    """Forecast over measurement, less 1; None where nothing was measured."""
    return float(said / truth) - 1 if np.isfinite(truth) and truth > 0 else None


def _errors(rows: Sequence[dict[str, Any]], name: str) -> dict[str, float | None]:
    errors = [abs(row[name]) for row in rows if row[name] is not None]
    return {"median": median(errors), "worst": max(errors, default=None)}


def _speed(model: Forecast) -> dict[str, Any]:
    """Errors of speed, by what was measured before; repeats of a plan are one plan."""
    seconds = model.column("step_seconds")
    fitted = np.flatnonzero(np.isfinite(seconds))
    plans = [
        fitted[[model.rows[row]["key"] == key for row in fitted]]
        for key in dict.fromkeys(model.rows[row]["key"] for row in fitted)
    ]
    baseline = [rows for rows in plans if model.work.executions.micro_batch[rows[0]] == 1]
    others = np.setdiff1d(fitted, np.concatenate([*baseline[:1], fitted[:0]]))
    each = range(len(plans))
    fives = itertools.combinations(each, RECORDS) if len(plans) > RECORDS else ()
    errors = _judge(model, fitted[:0], fitted)
    return {
        "speed": errors.tolist(),
        "others": _judge(model, fitted[:0], others).tolist() if baseline else [],
        "after_baseline": _judge(model, baseline[0], others).tolist() if baseline else [],
        "speed_after": _after(model, plans, fives),
        "leave_one_out": _after(model, plans, ([*each[:at], *each[at + 1 :]] for at in each)),
        "tau": kendall_tau(
            1 / _seconds(model, fitted[:0], fitted), 1 / seconds[fitted], noise=NOISE
        ),
    }


def _after(
    model: Forecast, plans: Sequence[NDArray[np.intp]], choices: Iterable[Sequence[int]]
) -> list[float]:
    """Errors of all other plans after each choice of plans that were measured."""
    errors: list[float] = []
    for chosen in choices:
        rest = [rows for at, rows in enumerate(plans) if at not in chosen]
        if chosen and rest:
            records = np.concatenate([plans[at] for at in chosen])
            errors += _judge(model, records, np.concatenate(rest)).tolist()
    return errors


def _judge(model: Forecast, records: NDArray[np.intp], rest: NDArray[np.intp]) -> Numbers:
    return percentage_errors(_seconds(model, records, rest), model.column("step_seconds")[rest])


def _seconds(model: Forecast, records: NDArray[np.intp], rest: NDArray[np.intp]) -> Numbers:
    """Forecast seconds of a step after some records."""
    seconds, held = model.column("step_seconds"), model.column("held_bytes")
    calibration = shipped_calibration().learned(
        model.work.take(records), seconds[records], held[records]
    )
    return forecast(model.work.take(rest), calibration, 1.0).step_seconds


if __name__ == "__main__":
    where = Path(sys.argv[1])
    tiny = any(row["tiny"] for row in Results(folder=where).rows)
    models = tuple(forecasts(where, plan_rows(where), tiny=tiny))
    print(json.dumps(judged(models, cuda=not tiny), indent=2))
