"""Search as a careful user writes it with Optuna alone: TPE over all knobs, on our trials' worker.

Like `benchmarks.plain_ray_tune`, where Ray cannot run: what no rule allows is answered at once with
a throughput of 0, and so is what ran out of memory. Its worker stays warm, which Ray Tune's do not.
"""

from __future__ import annotations

import time

import optuna

from benchmarks.end_to_end import Ending
from benchmarks.gpu.choosing import space_of
from benchmarks.gpu.lone_group import LoneGroup
from benchmarks.plain_ray_tune import WORTHLESS, choices, plan_of
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Measured


def search(group: LoneGroup, spec: SweepSpec, minutes: float, seed: int = 0) -> tuple[Ending, ...]:
    """The trials until time or budget are over; the last may end later."""
    began = time.time()
    space = space_of(spec, group.here(spec))
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    knobs = choices(space)
    endings: list[Ending] = []
    while time.time() - began < 60 * minutes and len(endings) < spec.budget.trials:
        trial = study.ask()
        config = {name: trial.suggest_categorical(name, v) for name, v in knobs.items()}
        plan = plan_of(space, config)
        kind, rate = "refused", WORTHLESS
        if plan is not None:
            outcome = group.measure(spec, plan, number=trial.number).outcome
            kind = outcome.kind
            rate = outcome.samples_per_second.value if isinstance(outcome, Measured) else WORTHLESS
        study.tell(trial, rate)
        endings.append(Ending(seconds=time.time() - began, rate=rate, kind=kind))
    return tuple(endings)
