"""Scale-out: runs on many nodes, forecast with the same run on one node as the only record."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.published.forecaster import Forecaster, RunForecasts
from benchmarks.published.values import Run

NODE = 8  # GPUs, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """A run on more than one node, with its errors of speed.

    `anchored` is that of a forecast which was given what one node measured.
    """

    source: str
    gpus: int
    error: float
    anchored: float


def rungs(runs: Sequence[Run], told: RunForecasts, forecaster: Forecaster) -> Iterator[Rung]:
    """Yields runs on several nodes of which the tables have the same on one node.

    The same is all but the number of data ranks and what follows from it.

    Args:
        runs: Runs of one source.
        told: Their forecasts without records.
        forecaster: Makes forecasts with records.
    """
    ladders = dict[object, list[int]]()
    for row, run in enumerate(runs):
        if run.throughput_usable and not run.stages and not run.extrapolated:
            ladders.setdefault(_ladder(run), []).append(row)
    for rows in ladders.values():
        fewest = min(runs[row].gpus for row in rows)
        above = [row for row in rows if runs[row].gpus > NODE]
        if fewest > NODE or not above:
            continue
        records = [runs[row] for row in rows if runs[row].gpus == fewest]
        after = forecaster.calibrated(records).forecast([runs[row] for row in above])
        for row, rate in zip(above, after.samples_per_second, strict=True):
            run, truth = runs[row], runs[row].samples_per_second
            assert truth is not None
            yield Rung(
                source=run.source,
                gpus=run.gpus,
                error=float(abs(told.samples_per_second[row] / truth - 1)),
                anchored=float(abs(rate / truth - 1)),
            )


def _ladder(run: Run) -> object:
    one_node = replace(run.layout, data=1, shards=1, hybrid=False, accumulation=1, global_batch=0)
    return replace(run, gpus=1, layout=one_node).configuration
