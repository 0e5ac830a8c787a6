"""Parameters of trials that are under way, visible to every thread and process of a study.

Optuna writes a parameter when the objective suggests it. Until then nobody else sees what a
sampler has proposed, and a second trial may get the same. So a proposal is written to the trial,
as an attribute, as soon as it is made.
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
_FIXED = "fixed_params"  # Optuna's, of a trial that was enqueued
_ATTEMPTS = 20  # to propose what no other process proposes at the same moment
Params = Mapping[str, Any]
Space = Mapping[str, BaseDistribution]
Propose = Callable[[Sequence[FrozenTrial], int], Params]


def parameters_of(trial: FrozenTrial, space: Space) -> dict[str, Any]:
    """The parameters that a trial has or will have, as far as they are known.

    Of a finished trial those that its objective suggested; of one that is waiting or running also
    those that were enqueued or proposed.
    """
    if trial.state.is_finished():
        return {name: trial.params[name] for name in space if name in trial.params}
    proposed = trial.system_attrs.get(PROPOSED, {})
    expected = {
        name: distribution.to_external_repr(proposed[name])
        for name, distribution in space.items()
        if name in proposed and distribution._contains(proposed[name])
    }
    for known in (trial.system_attrs.get(_FIXED, {}), trial.params):
        expected |= {name: known[name] for name in space if name in known}
    return expected


def enqueued(trial: FrozenTrial, space: Space) -> dict[str, Any]:
    """The parameters of a trial that its user fixed with `enqueue_trial`."""
    fixed = trial.system_attrs.get(_FIXED, {})
    return {name: fixed[name] for name in space if name in fixed}


def others(study: Study, trial: FrozenTrial) -> list[FrozenTrial]:
    """All trials of the study but this one, as the storage has them now."""
    return [one for one in study.get_trials(deepcopy=False) if one.number != trial.number]


class Reservations:
    """Proposals of one sampler, each written to its trial before anybody else may make one.

    Threads that share the sampler wait for each other. Storages have no such lock, so processes
    write first and look afterwards: of two that proposed the same at once, at least the one that
    wrote last sees the other's proposal. Whoever sees one proposes again, each from another place
    in the order of preference, by trial number.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {}  # samplers are pickled, locks cannot be

    def __setstate__(self, _: Mapping[str, Any]) -> None:
        self.lock = threading.RLock()

    def reserve(self, study: Study, trial: FrozenTrial, space: Space, propose: Propose) -> Params:
        """Lets `propose` choose until no other process has chosen the same meanwhile.

        Args:
            study: The trial's study.
            trial: The trial that is to have the parameters.
            space: Distributions of the parameters that are compared.
            propose: Gets the other trials, and how many of those preferred most to leave to
                others; returns parameters.
        """
        yielded = 0
        with self.lock:
            for _ in range(_ATTEMPTS):
                before = others(study, trial)
                params = propose(before, yielded)
                _write(study._storage, trial, space, params)
                rivals = self._rivals(study, trial, space, before, params)
                if not rivals:
                    break
                yielded = sum(number < trial.number for number in rivals)
            return params

    @staticmethod
    def _rivals(
        study: Study,
        trial: FrozenTrial,
        space: Space,
        before: Sequence[FrozenTrial],
        params: Params,
    ) -> list[int]:
        """Numbers of trials that got the same parameters since `before` was read."""
        known = {one.number for one in before if parameters_of(one, space) == params}
        # a rival may have ended by now
        return [
            one.number
            for one in others(study, trial)
            if one.number not in known and parameters_of(one, space) == params
        ]


def _write(storage: BaseStorage, trial: FrozenTrial, space: Space, params: Params) -> None:
    proposed = dict(storage.get_trial_system_attrs(trial._trial_id).get(PROPOSED, {}))
    for name, value in params.items():
        proposed[name] = float(space[name].to_internal_repr(value))
    storage.set_trial_system_attr(trial._trial_id, PROPOSED, proposed)
