"""Jobs of ranks: the change of each weight by two steps of SGD under a plan, and a whole trial."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from search_spaces.trial import Outcome, TrialRequest
from tests.workers.one_step import built, sgd, whole_weights
from tests.workers.parity.plain_loop import FIRST_STEPS, FP16_SCALE
from workers.entry import run_trial
from workers.worker import Worker

# fp16: between two steps that count lies one that overflows, by a scale that fp16 cannot hold. The
# scaler halves it then.
TOO_LARGE = 2.0**60
_FIRST, _SECOND = FIRST_STEPS
_WITHOUT_SCALES = ((_FIRST, None), (_SECOND, None))
_WITH_OVERFLOW = ((_FIRST, FP16_SCALE), (_SECOND + 1, TOO_LARGE), (_SECOND, FP16_SCALE))


def changes(worker: Worker, request: TrialRequest, rate: float) -> dict[str, Any] | str:
    """Returns the change of each of this rank's weights by two steps, or what failed."""
    _be_quiet()
    try:
        return _changes(worker, request, rate)
    except Exception as error:  # noqa: BLE001  # told beside the others
        return f"{type(error).__name__}: {error}".splitlines()[0]


def trial(worker: Worker, request: TrialRequest) -> Outcome:
    """Runs a trial with its own optimizer."""
    _be_quiet()
    return run_trial(request, worker)


def _be_quiet() -> None:
    transformers_logging.set_verbosity_error()
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")


def _changes(worker: Worker, request: TrialRequest, rate: float) -> dict[str, Any]:
    plan = request.plan
    ours = built(worker, request, sgd(rate))
    before = whole_weights(ours.module)
    for number, scale in _WITH_OVERFLOW if plan.precision == "fp16" else _WITHOUT_SCALES:
        scaler = None
        if scale is not None:
            scaler = ours.training.update.scaler
            scaler.update(new_scale=scale)
        ours.step(number)
        if scaler is not None:
            overflown = scale == TOO_LARGE
            assert scaler.get_scale() == (scale / 2 if overflown else scale), "the loss scale"
    after = whole_weights(ours.module)
    ours.training.close()
    return {name: (before[name] - weight).numpy() for name, weight in after.items()}


def tensors(ranks: list[dict[str, Any]]) -> list[Mapping[str, torch.Tensor]]:
    """Returns the changes as tensors, as which they do not travel between processes."""
    return [{name: torch.from_numpy(change) for name, change in each.items()} for each in ranks]
