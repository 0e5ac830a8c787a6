"""Modules that people write, and outputs and batches in forms that they use, by name."""

import copy
import types
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint
from transformers import BatchEncoding
from transformers.utils import ModelOutput

WIDTH, ROWS, SAMPLES = 8, 6, 40
Batch = Callable[[tuple[int, ...]], dict[str, Any]]


class Layer(nn.Module):
    """A layer with a few parts, called as `call(parts, x)` says."""

    def __init__(self, call: Callable[[nn.ModuleList, torch.Tensor], Any], *parts: Any) -> None:
        super().__init__()
        self.parts, self.call = nn.ModuleList(parts), call

    def forward(self, x: torch.Tensor) -> Any:
        return self.call(self.parts, x)


class Weight(nn.Module):
    """A weight of its own, used as `call(weight, x)` says."""

    def __init__(self, call: Callable[[nn.Parameter, torch.Tensor], Any], first: Any) -> None:
        super().__init__()
        self.weight, self.call = nn.Parameter(first), call

    def forward(self, x: torch.Tensor) -> Any:
        return self.call(self.weight, x)


def _linear(**options: Any) -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH, **options)


def _sixteen_bits() -> nn.Module:
    def run(parts: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
        return parts[1](parts[0](x.to(parts[0].weight.dtype)).to(x.dtype))

    return Layer(run, _linear(dtype=torch.bfloat16), nn.LayerNorm(WIDTH))


def _experts(parts: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    """Gives each row to the expert with the largest score, if one has rows."""
    scores, out = parts[0](x)[..., :3].softmax(-1), torch.zeros_like(x)
    for index, expert in enumerate(parts[1:]):
        rows = scores.argmax(-1) == index
        if rows.any():
            out[rows] = expert(x[rows]) * scores[rows][:, index, None]
    return x + out


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Sequential(_linear(), nn.Tanh()),
    "weight norm": lambda: parametrizations.weight_norm(_linear()),
    "weight norm by hooks": lambda: nn.utils.weight_norm(_linear()),
    "orthogonal": lambda: parametrizations.orthogonal(_linear()),
    "group norm": lambda: nn.Sequential(nn.Conv1d(ROWS, ROWS, 3, padding=1), nn.GroupNorm(2, ROWS)),
    "instance norm": lambda: nn.Sequential(_linear(), nn.InstanceNorm1d(ROWS, affine=True)),
    "root mean square norm": lambda: nn.Sequential(nn.RMSNorm(WIDTH), _linear()),
    "lstm": lambda: Layer(lambda p, x: p[0](x)[0], nn.LSTM(WIDTH, WIDTH, batch_first=True)),
    "gru": lambda: Layer(lambda p, x: p[0](x)[0], nn.GRU(WIDTH, WIDTH, batch_first=True)),
    "encoder layer": lambda: nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.0, batch_first=True),
    "attention": lambda: Layer(
        lambda p, x: p[0](x, x, x, need_weights=False)[0],
        nn.MultiheadAttention(WIDTH, 2, batch_first=True),
    ),
    "in place": lambda: nn.Sequential(_linear(), nn.ReLU(inplace=True), _linear()),
    "prelu": lambda: nn.Sequential(_linear(), nn.PReLU()),
    "scalar weight": lambda: nn.Sequential(_linear(), Weight(torch.mul, torch.tensor(1.5))),
    "turned weight": lambda: Weight(lambda w, x: x @ w, torch.randn(WIDTH, WIDTH).T),
    "empty weight": lambda: nn.Sequential(
        _linear(), Weight(lambda w, x: x + w.sum(), torch.zeros(0))
    ),
    "complex": lambda: nn.Sequential(
        _linear(),
        Weight(
            lambda w, x: torch.fft.irfft(torch.fft.rfft(x) * w, n=WIDTH),
            torch.ones(WIDTH // 2 + 1, dtype=torch.complex64),
        ),
    ),
    "sixteen bits beside": _sixteen_bits,
    "double": lambda: _linear(dtype=torch.float64),
    "frozen half": lambda: nn.Sequential(_linear().requires_grad_(False), nn.Tanh(), _linear()),
    "recomputed inside": lambda: Layer(
        lambda p, x: checkpoint(p[0], x, use_reentrant=False), nn.Sequential(_linear(), nn.Tanh())
    ),
    "experts": lambda: Layer(_experts, _linear(), *(_linear() for _ in range(3))),
    "batch norm": lambda: nn.Sequential(nn.BatchNorm1d(ROWS), _linear(), nn.Tanh()),
    "dropout": lambda: nn.Sequential(_linear(), nn.Dropout(0.3)),
}


class Net(nn.Module):
    """Two layers of a kind, and a mean square over samples."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.blocks = kind, nn.ModuleList([LAYERS.get(kind, _linear)() for _ in "ab"])
        self.heads = nn.ModuleDict({name: nn.Linear(WIDTH, 1) for name in ("one", "other")})
        if kind == "tied blocks":
            self.blocks[1].weight = self.blocks[0].weight
        elif kind == "one block twice":
            self.blocks[1] = self.blocks[0]
        elif kind == "tied thrice":
            self.first, self.last = _linear(), _linear()
            self.first.weight = self.last.weight = self.blocks[0].weight
        elif kind == "moving average":
            self.target = copy.deepcopy(self.blocks).requires_grad_(False)
        elif kind == "renormalised":
            self.embed = nn.Embedding(SAMPLES, WIDTH, max_norm=1.0)
        elif kind == "listed weights":
            self.scales = nn.ParameterList([nn.Parameter(torch.ones(WIDTH)) for _ in "ab"])

    def forward(self, x: torch.Tensor, task: Any = None, **others: Any) -> Any:
        kind, first = self.kind, x
        if kind == "renormalised":
            x = x + self.embed(task)[:, None]
        for block in [*self.blocks] * (3 if kind == "called thrice" else 1):
            x = torch.tanh(block(x))
        if kind == "tied thrice":
            x = self.last(torch.tanh(self.first(x)))
        elif kind == "listed weights":
            x = x * self.scales[0] + self.scales[1]
        elif kind == "moving average":
            return self._beside_its_average(first, x)
        elif kind.startswith("head"):
            return self._of_tasks(x, task)
        if kind == "nested":
            x = x * others["more"]["scale"][:, None, None]
        score = self.heads["one"](x[:, 0])[:, 0]
        if kind != "one head":
            score = score + self.heads["other"](x[:, 0]).tanh()[:, 0]
        loss = (x - 1).square().mean() + score.square().mean()
        return OUTPUTS[kind](loss, x) if kind in OUTPUTS else loss

    def _beside_its_average(self, first: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for mean, weight in zip(
                self.target.parameters(), self.blocks.parameters(), strict=True
            ):
                mean.lerp_(weight, 0.3)
            for block in self.target:
                first = torch.tanh(block(first))
        return (x - 2 * first).square().mean()

    def _of_tasks(self, x: torch.Tensor, task: torch.Tensor) -> torch.Tensor:
        """Computes the loss of a head for each sample of its task, or of all heads masked."""
        loss = x.sum() * 0
        for number, head in enumerate(self.heads.values()):
            rows = task % 2 == number
            if rows.any() or self.kind == "heads masked":
                loss = loss + ((head(x[:, 0])[:, 0] - 1).square() * rows).sum() / len(x)
        return loss


SHAPES = (
    *("tied blocks", "one block twice", "called thrice", "tied thrice", "moving average"),
    *("renormalised", "listed weights", "one head", "heads by sample", "heads masked"),
)


@dataclass
class Result:
    """An output that people write as a data class."""

    loss: torch.Tensor
    logits: torch.Tensor


OUTPUTS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "data class": lambda loss, x: Result(loss=loss, logits=x),
    "named tuple": lambda loss, x: namedtuple("Out", "logits loss")(x, loss),
    "loss behind logits": lambda loss, x: (x, None, loss),
    "a list": lambda loss, x: [loss, x],
    "namespace": lambda loss, x: types.SimpleNamespace(loss=loss, logits=x),
    "model output": lambda loss, x: ModelOutput(loss=loss, logits=x),
    "loss of one element": lambda loss, x: {"loss": loss[None], "logits": x},
}
BATCHES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "arrays": lambda batch: {name: one.numpy() for name, one in batch.items()},
    "lists": lambda batch: {name: one.tolist() for name, one in batch.items()},
    "batch encoding": BatchEncoding,
    "texts": lambda batch: {**batch, "names": ["a", "b"], "path": "a.txt", "none": None},
    "nested": lambda batch: {**batch, "more": {"scale": batch["task"] / 40 + 0.5}},
    "double": lambda batch: {**batch, "x": batch["x"].double()},
    "small numbers": lambda batch: {**batch, "x": batch["x"].half().float(), "switch": True},
}


def make(kind: str) -> tuple[nn.Module, Batch, int]:
    """Returns a module of a kind, a batch maker, and its number of samples."""
    samples = torch.randn(SAMPLES, ROWS, WIDTH, generator=torch.Generator().manual_seed(1))

    def batch(numbers: tuple[int, ...]) -> Any:
        made = {"x": samples[list(numbers)], "task": torch.tensor(numbers)}
        return BATCHES.get(kind, dict)(made)

    return Net(kind), batch, SAMPLES
