"""Parameters of pending trials, visible to every thread and process of a study.

Optuna writes a parameter when the objective suggests it. Until then other processes do not see the
proposal, and a second trial may get the same one. So each proposal is written to its trial at once,
as an attribute.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.storages import BaseStorage
from optuna.study import Study
from optuna.trial import FrozenTrial

PROPOSED = "plimsoll:proposed"  # system attribute: internal representations by parameter
_FIXED = "fixed_params"  # Optuna's system attribute of an enqueued trial
_ATTEMPTS = 20  # proposals, while other processes propose the same
Params = Mapping[str, Any]
Space = Mapping[str, BaseDistribution]
Propose = Callable[[Sequence[FrozenTrial], int], Params]


def parameters_of(trial: FrozenTrial, space: Space) -> dict[str, Any]:
    """Returns the parameters that a trial has or will have.

    For a finished trial these are the suggested ones; for a waiting or running one, also those
    that were enqueued or proposed.
    """
    if trial.state.is_finished():
        return {name: trial.params[name] for name in space if name in trial.params}
    proposed = trial.system_attrs.get(PROPOSED, {})
    expected = {
        name: distribution.to_external_repr(proposed[name])
        for name, distribution in space.items()
        if name in proposed and distribution._contains(proposed[name])
    }
    for params in (trial.system_attrs.get(_FIXED, {}), trial.params):
        expected |= {name: params[name] for name in space if name in params}
    return expected


def enqueued(trial: FrozenTrial, space: Space) -> dict[str, Any]:
    """Returns the parameters that the user fixed with `enqueue_trial`."""
    fixed = trial.system_attrs.get(_FIXED, {})
    return {name: fixed[name] for name in space if name in fixed}


def other_trials(study: Study, trial: FrozenTrial) -> list[FrozenTrial]:
    """Returns all other trials of the study, as they are in the storage now."""
    return [other for other in study.get_trials(deepcopy=False) if other.number != trial.number]


class Reservations:
    """Writes each proposal of a sampler to its trial before the next one is made.

    Threads that share the sampler use a lock. Storages have none, so processes write first and
    check afterwards: if two propose the same at once, at least the later writer sees the conflict.
    A process that sees one proposes again, and the trial number decides how many of the preferred
    candidates it leaves to others.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {}  # samplers are pickled, locks cannot be

    def __setstate__(self, _: Mapping[str, Any]) -> None:
        self.lock = threading.RLock()

    def reserve(self, study: Study, trial: FrozenTrial, space: Space, propose: Propose) -> Params:
        """Calls `propose` until no other process has proposed the same.

        Args:
            study: The trial's study.
            trial: The trial that gets the parameters.
            space: Distributions of the parameters to compare.
            propose: Called with the other trials, and with the number of top candidates to leave
                to others; returns parameters.

        Returns:
            The parameters, which are written to the trial.
        """
        yielded = 0
        with self.lock:
            for _ in range(_ATTEMPTS):
                earlier = other_trials(study, trial)
                params = propose(earlier, yielded)
                _write(study._storage, trial, space, params)
                conflicts = self._conflicts(study, trial, space, earlier, params)
                if not conflicts:
                    break
                yielded = sum(number < trial.number for number in conflicts)
            return params

    @staticmethod
    def _conflicts(
        study: Study,
        trial: FrozenTrial,
        space: Space,
        earlier: Sequence[FrozenTrial],
        params: Params,
    ) -> list[int]:
        """Returns the numbers of trials that got the same parameters since `earlier` was read."""
        repeated = {other.number for other in earlier if parameters_of(other, space) == params}
        # One that has finished since counts too
        return [
            other.number
            for other in other_trials(study, trial)
            if other.number not in repeated and parameters_of(other, space) == params
        ]


def _write(storage: BaseStorage, trial: FrozenTrial, space: Space, params: Params) -> None:
    proposed = dict(storage.get_trial_system_attrs(trial._trial_id).get(PROPOSED, {}))
    for name, value in params.items():
        proposed[name] = float(space[name].to_internal_repr(value))
    storage.set_trial_system_attr(trial._trial_id, PROPOSED, proposed)
