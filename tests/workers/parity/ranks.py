"""Jobs of ranks: two steps of SGD under a plan, and a whole trial."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from search_spaces.trial import Outcome, TrialRequest
from tests.workers.one_step import built, sgd, whole_weights
from tests.workers.parity.plain_loop import FP16_SCALE
from workers.entry import run_trial
from workers.worker import Worker

# fp16: between two steps that count lies one that overflows, by a scale that fp16 cannot hold. The
# scaler halves it then.
TOO_LARGE = 2.0**60
Steps = tuple[list[float], dict[str, Any]]


def steps(
    worker: Worker, request: TrialRequest, rate: float, numbers: tuple[int, int]
) -> Steps | str:
    """Takes two steps, by their numbers, or says what failed.

    Returns:
        This rank's parts of both losses, and the change of each of its weights.
    """
    _be_quiet()
    try:
        return _steps(worker, request, rate, numbers)
    except Exception as error:  # noqa: BLE001  # told beside the others
        return f"{type(error).__name__}: {error}".splitlines()[0]


def trial(worker: Worker, request: TrialRequest) -> Outcome:
    """Runs a trial with its own optimizer."""
    _be_quiet()
    return run_trial(request, worker)


def _be_quiet() -> None:
    transformers_logging.set_verbosity_error()
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")


def _steps(worker: Worker, request: TrialRequest, rate: float, numbers: tuple[int, int]) -> Steps:
    first, second = numbers
    scales: list[tuple[int, float | None]] = [(first, None), (second, None)]
    if request.plan.precision == "fp16":
        scales = [(first, FP16_SCALE), (second + 1, TOO_LARGE), (second, FP16_SCALE)]
    ours = built(worker, request, sgd(rate))
    before, losses = whole_weights(ours.module), []
    for number, scale in scales:
        scaler = None
        if scale is not None:
            scaler = ours.training.update.scaler
            scaler.update(new_scale=scale)
        loss = float(ours.step(number))
        if scaler is not None:
            overflown = scale == TOO_LARGE
            assert scaler.get_scale() == (scale / 2 if overflown else scale), "the loss scale"
        losses += [] if scale == TOO_LARGE else [loss]
    after = whole_weights(ours.module)
    ours.training.close()
    return losses, {name: (before[name] - weight).float().numpy() for name, weight in after.items()}


def tensors(ranks: list[Steps]) -> list[Mapping[str, torch.Tensor]]:
    """Returns the changes as tensors, as which they do not travel between processes."""
    return [
        {name: torch.from_numpy(change) for name, change in moved.items()} for _, moved in ranks
    ]
