"""Fits the coefficients of forecasts to published measurements.

    python -m benchmarks.published.fit DIR [--keep-coefficients]

Writes what Plimsoll ships (`search_spaces/costs/prior.json`), and for each source the same
fitted without it (`benchmarks/published/priors`), by which that source is judged. Each coefficient
has a prior: what is known of hardware and software in general; so has its spread. Residuals are
logarithms; large ones count by their size and not by its square. Sources count by the square root
of their rows, so that none drowns the others. With --keep-coefficients only the uncertainties
are fitted; a source without a file takes the coefficients that ship, which it took no part in.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, least_squares
from scipy.stats import norm

from benchmarks.published.product import PRIORS, Laid, lay, measured, traced
from benchmarks.published.reader import read
from benchmarks.published.values import Run
from search_spaces.costs import calibration as shipped
from search_spaces.costs.calibration import CALIBRATIONS, Calibration, Scales
from search_spaces.costs.coefficients import TimeCoefficients
from search_spaces.costs.memory import CATEGORIES, MemoryCoefficients, peak_bytes
from search_spaces.costs.micro_batch import LAUNCH_SCALES
from search_spaces.costs.plan_features import STACKS, Numbers
from search_spaces.costs.time import SCALES, step_terms

Vector = NDArray[np.float64]
STEPS = 60
TIME_LOSS, MEMORY_LOSS = 0.15, 0.1  # residuals up to these count by their square
# spreads of logarithms before any measurement
_WIDE = 1.0  # of what may be next to nothing: waits, halves, overlaps
_SPREADS: dict[str, float] = {
    **dict.fromkeys(
        (
            "recompute_seconds",
            "hook_seconds",
            "node_jitter",
            "wave_half",
            "inner_half",
            "rank_seconds",
            "sequence_half",
        ),
        _WIDE,
    ),
    "exposed": 0.4,
    "launch": 0.3,
    "step_seconds": 0.5,  # one rank's alone: what ranks and nodes cost is theirs
    "pass_seconds": 0.5,
    # what no table tells: rates of cuDNN's attention and of backward's alone, and torch's own
    # selective recomputation
    "attention_backward": 0.1,
    "cudnn_attention": 0.05,
    "recomputed_launch": 0.05,
    "compiled_traffic": 0.1,  # what is compiled was measured by few, on devices of their own
    "architectures": 0.1,
    "stacks": 0.2,
    # Tables say what was held; that they hold other things than a trace tells would else be
    # called fragmentation, where it is not theirs alone
    "fragmentation": 0.1,
    "varied": 0.1,
    "library_bytes": 0.15,
    "workspace_bytes": 0.15,
}
_USUAL = 0.4
_NEAR = ("fsdp", "ddp", "hf")  # whose loops are like Plimsoll's own
_MAD = 1.4826  # of a normal distribution, its deviation over the median of what is apart
# What a measurement teaches: spreads of the common scale and of each term's, and its noise. With
# these, three measurements of a set forecast the rest of it best (see decision 14).
# The host's launches differ by a factor of four and more from what one trivial operator takes.
_TIME_SCALES = Scales.before(
    0.2,
    tuple(1.0 if name in LAUNCH_SCALES else 0.5 for name in SCALES),
    0.03,
    apart=tuple(SCALES.index(name) for name in LAUNCH_SCALES),
)
# Weights and states are known by arithmetic, activations by a trace of code that may not be the
# run's, others less. With wider spreads or less noise three records made the rest of a table worse.
_MEMORY_SPREADS = {
    **dict.fromkeys(("weights", "gradients", "optimizer"), 0.1),
    **dict.fromkeys(("gathered", "activations"), 0.2),
}
_MEMORY_SCALES = Scales.before(
    0.1, tuple(_MEMORY_SPREADS.get(name, 0.3) for name in CATEGORIES), 0.03
)
T = TypeVar("T")


def fit(
    laid: Laid, runs: Sequence[Run], left_out: str | None, kept: Calibration | None = None
) -> Calibration:
    """The calibration that all rows but those of a source lead to.

    Args:
        laid: The runs as work.
        runs: The runs.
        left_out: The source that takes no part; None for all.
        kept: A calibration whose coefficients stay; None to fit them.
    """
    sources = np.array([run.source for run in runs])
    judged = np.array([not run.extrapolated for run in runs]) & (sources != (left_out or ""))
    seconds, held = measured(runs, laid)
    timed = np.flatnonzero(judged & np.isfinite(seconds))
    weighed = np.flatnonzero(judged & np.isfinite(held))
    groups = np.array([f"{run.source} {run.model} {run.device} {run.gpus}" for run in runs])
    time = kept.time if kept else _fit_time(laid, timed, seconds[timed], sources[timed])
    slopes = step_terms(laid.work.take(timed), time).slopes
    scales = _fit_scales(_TIME_SCALES, slopes, seconds[timed], groups[timed])
    memory = kept.memory if kept else _fit_memory(laid, weighed, held[weighed], sources[weighed])
    bytes_ = peak_bytes(laid.work.take(weighed), memory).bytes * laid.counted[weighed]
    memory_scales = _fit_scales(_MEMORY_SCALES, bytes_, held[weighed], groups[weighed])
    like = np.array([_is_like_ours(runs[row]) for row in weighed.tolist()])
    # by eight in ten: what is far apart did what its table does not say
    own = _fit_scales(
        _MEMORY_SCALES, bytes_[like], held[weighed][like], groups[weighed][like], share=0.8
    )
    provenance = (
        f"{len(timed)} throughputs and {len(weighed)} memory peaks of"
        f" {len(set(sources[timed]) | set(sources[weighed]))} published sources"
    )
    return Calibration(
        time=time,
        time_scales=scales,
        memory=memory,
        memory_scales=memory_scales,
        own_deviation_factor=own.deviation_factor,
        provenance=kept.provenance if kept else provenance,
    )


def _fit_time(
    laid: Laid, rows: NDArray[np.intp], seconds: Vector, sources: Vector
) -> TimeCoefficients:
    work = laid.work.take(rows)

    def forecast(vector: Vector) -> Vector:
        total: Vector = step_terms(work, from_vector(TimeCoefficients, vector)).seconds.sum(axis=1)
        return total

    start = TimeCoefficients()
    found = from_vector(
        TimeCoefficients, _fitted(forecast, start, seconds, weights(sources), TIME_LOSS)
    )
    ours = np.exp(np.mean([np.log(found.stacks[STACKS.index(name)]) for name in _NEAR]))
    stacks = list(found.stacks)
    stacks[STACKS.index("torch")] = float(ours)
    return replace(found, stacks=tuple(stacks))


def _fit_memory(
    laid: Laid, rows: NDArray[np.intp], held: Vector, sources: Vector
) -> MemoryCoefficients:
    work, counted = laid.work.take(rows), laid.counted[rows]

    def forecast(vector: Vector) -> Vector:
        peaks = peak_bytes(work, from_vector(MemoryCoefficients, vector)).bytes
        total: Vector = (peaks * counted).sum(axis=1)
        return total

    start = MemoryCoefficients()
    return from_vector(
        MemoryCoefficients, _fitted(forecast, start, held, weights(sources), MEMORY_LOSS)
    )


def _fitted(
    forecast: Callable[[Vector], Vector], start: Any, truth: Vector, weight: Vector, loss: float
) -> Vector:
    """The most probable logarithms of coefficients."""
    prior, spread = to_vector(start), _spreads(start)
    target, share = np.log(truth), np.sqrt(weight)

    def residuals(vector: Vector) -> Vector:
        apart = (np.log(forecast(vector)) - target) / loss
        soft = np.sign(apart) * np.sqrt(2 * (np.sqrt(1 + apart**2) - 1))
        return np.concatenate([soft * share, (vector - prior) / spread])

    found: Vector = least_squares(residuals, prior, x_scale=spread, max_nfev=STEPS).x
    return found


def _is_like_ours(run: Run) -> bool:
    """Plain PyTorch on plain ranks, whose allocations a trace of transformers' models tells."""
    layout = run.layout
    plain = run.source != "qwen"  # of the model's own code, with operators in fp32
    plain &= layout.engine in ("hf", "ddp") and layout.loss != "linear" and layout.zero_stage == 0
    return plain and not run.varied and run.states.frozen_bits is None and not layout.pipeline > 1


def _spreads(start: Any) -> Vector:
    return np.concatenate(
        [
            np.full(np.size(getattr(start, f.name)), _SPREADS.get(f.name, _USUAL))
            for f in fields(start)
        ]
    )


def weights(sources: Vector) -> Vector:
    """Returns the weight of each row: a source counts by the square root of its rows; mean 1."""
    rows = Counter(sources.tolist())
    each = np.array([rows[source] ** -0.5 for source in sources])
    normed: Vector = each / each.mean()
    return normed


def _fit_scales(
    scales: Scales, terms: Vector, truth: Vector, groups: Vector, share: float = 0.95
) -> Scales:
    """Scales whose intervals of a share hold as many of the residuals.

    What plans of one group do not share is misfit: a group is a model on some devices by somebody.
    """
    total = terms.sum(axis=1)
    known = (total > 0) & np.isfinite(truth)
    residual = np.log(truth[known] / total[known])
    which = groups[known]
    apart = np.concatenate(
        [residual[which == group] - np.median(residual[which == group]) for group in set(which)]
    )
    misfit = float(np.median(np.abs(apart)) * _MAD)
    structure = scales.deviation(terms[known])

    def missed(factor: float) -> float:
        deviation = np.sqrt((factor * structure) ** 2 + misfit**2)
        return float((np.abs(residual) > norm.ppf((1 + share) / 2) * deviation).mean() - 1 + share)

    least, most = 0.01, 10.0
    enough = missed(least) > 0 > missed(most)
    factor = float(brentq(missed, least, most, xtol=1e-3)) if enough else 1.0
    return replace(scales, deviation_factor=factor, misfit=misfit)


def to_vector(coefficients: Any) -> Numbers:
    """Returns the logarithms of a dataclass's coefficients, in the order of its fields."""
    values = [getattr(coefficients, field.name) for field in fields(coefficients)]
    logarithms: Numbers = np.log(np.hstack(values))
    return logarithms


def from_vector(kind: type[T], vector: Numbers) -> T:
    """Returns the value of a dataclass whose coefficients have these logarithms."""
    values = iter(np.exp(vector).tolist())
    coefficients: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]
        if isinstance(field.default, tuple):
            coefficients[field.name] = tuple(next(values) for _ in field.default)
        else:
            coefficients[field.name] = next(values)
    return kind(**coefficients)


def main(folder: Path, keep_coefficients: bool) -> None:
    """Fits all of it, or the uncertainties alone."""
    tables = read(folder)
    laid = lay(tables.runs, traced)
    assert laid is not None, "no run can be forecast"
    runs = [tables.runs[row] for row in laid.rows]
    laid = replace(laid, rows=np.arange(len(runs)))
    PRIORS.mkdir(exist_ok=True)
    shipped_at = Path(shipped.__file__).with_name(shipped.PRIOR)
    before = CALIBRATIONS.validate_json(shipped_at.read_bytes())
    for source in (None, *tables.sources):
        where = shipped_at if source is None else PRIORS / f"{source}.json"
        earlier = CALIBRATIONS.validate_json(where.read_bytes()) if where.is_file() else before
        found = fit(laid, runs, source, earlier if keep_coefficients else None)
        where.write_bytes(CALIBRATIONS.dump_json(found, indent=1) + b"\n")
        print(where.name, file=sys.stderr, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of tables (.csv)")
    parser.add_argument("--keep-coefficients", action="store_true")
    given = parser.parse_args()
    main(given.folder, given.keep_coefficients)
