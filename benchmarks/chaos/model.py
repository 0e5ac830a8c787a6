"""The model of the sweeps: misbehaves when ordered to, and writes down what its ranks measured.

It is copied beside the specification, where every process of a sweep imports it. An order is a file
in the folder `orders`, which the first rank to see it takes away. The study is compared with the
journal, which the worker writes before anything of ours has the result.
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.chaos.plants import plant
from search_spaces.trial import Measured, Outcome, TrialRequest
from workers import entry

HERE = Path(__file__).parent
ORDERS, JOURNAL = HERE / "orders", HERE / "journal.jsonl"
WIDTH = 64
MIB = 2**20


class Obedient(nn.Module):
    """Two blocks and a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x).relu()
        loss = x.square().mean()
        return loss + _obey(loss)


def make() -> tuple[Obedient, Callable[[tuple[int, ...]], Mapping[str, torch.Tensor]]]:
    """The model and its batches."""

    def batch(numbers: tuple[int, ...]) -> Mapping[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(numbers[0])
        return {"x": torch.randn(len(numbers), WIDTH, generator=generator)}

    return Obedient(), batch


def _obey(loss: torch.Tensor) -> torch.Tensor:
    """Obeys orders; returns what is added to the loss. The last rank obeys, and only in a trial.

    Before its first trial a rank warms up: a loop there holds up the start of a group.
    """
    if not (_under_way and dist.is_initialized() and dist.get_rank() == dist.get_world_size() - 1):
        return torch.zeros(())
    for order in sorted(ORDERS.glob("*.order")):
        try:
            taken = order.rename(order.with_suffix(".taken"))
        except FileNotFoundError:
            continue
        taken.write_text(str(_under_way[0].number))  # the attempt that it strikes
        match order.stem.partition("-")[0]:
            case "nan":
                return loss * float("nan")
            case "oom":
                torch.ones(2048 * MIB // 4).sum()  # past the budget, on this rank only
            case "hog":
                _hog()
            case "loop":
                while True:
                    time.sleep(0.1)
            case "raise":
                raise ValueError("ordered to")
    return torch.zeros(())


def _hog() -> None:
    """Takes host memory step by step, past what the rank may have."""
    held = []
    for _ in range(64):
        held.append(torch.ones(32 * MIB // 4))
        time.sleep(0.02)


_train_and_measure, _agree = entry.train_and_measure, entry.merge_outcomes  # type: ignore[attr-defined]
_under_way: list[TrialRequest] = []


def _noted(request: TrialRequest, *arguments: Any) -> Outcome:
    _under_way[:] = [request]
    return _train_and_measure(request, *arguments)


def _journaled(endings: Sequence[Outcome]) -> Outcome:
    outcome = _agree(endings)
    first = not dist.is_initialized() or dist.get_rank() == 0
    if first and isinstance(outcome, Measured) and _under_way:
        (request,) = _under_way
        line = {
            "number": request.number,
            "plan": request.plan.key,
            "validation": request.validation,
            "samples_per_second": outcome.samples_per_second.value,
        }
        with JOURNAL.open("a") as journal:
            journal.write(json.dumps(line) + "\n")
            journal.flush()
            os.fsync(journal.fileno())
    return outcome


entry.train_and_measure = _noted  # type: ignore[attr-defined, assignment]
entry.merge_outcomes = _journaled  # type: ignore[attr-defined]
plant()
