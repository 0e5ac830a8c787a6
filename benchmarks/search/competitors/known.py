"""All competitors by their names."""

from collections.abc import Callable, Mapping
from functools import partial

from benchmarks.search.competitors import of_optuna
from benchmarks.search.competitors.autotuner import autotuner
from benchmarks.search.competitors.base import AbstractCompetitor, ByStrategy
from benchmarks.search.competitors.layout import largest_micro_batch
from benchmarks.search.competitors.ours import (
    Plimsoll,
    memory_times,
    times_shuffled,
    without_forecasts,
)
from benchmarks.search.surfaces import Surface

MakeCompetitor = Callable[[Surface, int], AbstractCompetitor]
_HIGH = 1.3  # by how much wrong forecasts of memory are off

COMPETITORS: Mapping[str, MakeCompetitor] = {
    "plimsoll": Plimsoll,
    "plimsoll without forecasts": lambda surface, seed: Plimsoll(without_forecasts(surface), seed),
    "tpe": of_optuna.tpe,
    "gp": of_optuna.gp,
    "random": of_optuna.random,
    "largest micro-batch first": partial(ByStrategy, strategy=largest_micro_batch),
    "deepspeed autotuner": partial(ByStrategy, strategy=autotuner),
}
WRONG: Mapping[str, MakeCompetitor] = {  # forecasts that are spoilt on purpose
    "plimsoll, times shuffled": lambda surface, seed: Plimsoll(times_shuffled(surface, seed), seed),
    "plimsoll, memory 30 % high": lambda surface, seed: Plimsoll(
        memory_times(surface, _HIGH), seed
    ),
}
