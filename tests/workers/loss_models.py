"""Losses that people write, each of a small function: what they are means over differs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY, WIDTH, SAMPLES, LONGEST = 13, 8, 24, 9
Batch = Callable[[tuple[int, ...]], dict[str, Any]]


class Block(nn.Module):
    """A layer of `Net`."""

    def __init__(self, loss: str) -> None:
        super().__init__()
        self.inner: nn.Module = nn.Linear(WIDTH, WIDTH)
        if loss == "spectral norm":
            self.inner = nn.utils.parametrizations.spectral_norm(self.inner)

    def forward(self, states: torch.Tensor) -> Any:
        return states + torch.tanh(self.inner(states))


class Net(nn.Module):
    """A small language model whose loss is one of `LOSSES`."""

    def __init__(self, loss: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block(loss) for _ in range(2)])
        self.head = nn.Linear(WIDTH, VOCABULARY)
        if loss == "normalised":
            self.head = nn.BatchNorm1d(WIDTH)
        self.register_buffer("codes", torch.randn(4, WIDTH))
        self.loss, self.passes = loss, 0

    def forward(self, input_ids: torch.Tensor, labels: Any = None, **others: Any) -> Any:
        states = self.embed(input_ids)
        skips = self.loss == "skipping" and torch.rand(()) < 0.3
        for block in self.blocks[1:] if skips else self.blocks:
            states = block(states)
        if self.loss == "dropout":
            states = functional.dropout(states, 0.3, self.training)
        return LOSSES[self.loss](self, states, labels, others)


def _token_losses(net: Net, states: torch.Tensor, labels: torch.Tensor, **options: Any) -> Any:
    return functional.cross_entropy(net.head(states).transpose(1, 2), labels, **options)


def _shifted(net: Net, states: torch.Tensor, labels: torch.Tensor, _: Any) -> Any:
    return _token_losses(net, states[:, :-1], labels[:, 1:])


def _over_mask(net: Net, states: torch.Tensor, labels: torch.Tensor, others: Any) -> Any:
    mask = others["mask"]
    losses = _token_losses(net, states, labels.clamp(min=0), reduction="none")
    return (losses * mask).sum() / mask.sum()


def _per_sample(net: Net, states: torch.Tensor, labels: torch.Tensor, others: Any) -> torch.Tensor:
    mask = others["mask"]
    losses = _token_losses(net, states, labels.clamp(min=0), reduction="none")
    return (losses * mask).sum(1) / mask.sum(1)


def _weighted(net: Net, states: torch.Tensor, labels: torch.Tensor, others: Any) -> Any:
    weights = others["weights"]
    return (_per_sample(net, states, labels, others) * weights).sum() / weights.sum()


def _ctc(net: Net, states: torch.Tensor, labels: torch.Tensor, others: Any) -> Any:
    lengths = others["mask"].sum(1).long()
    log_probs = net.head(states).log_softmax(-1).transpose(0, 1)
    targets, sizes = labels[:, :3].clamp(min=1), torch.full_like(lengths, 3)
    return functional.ctc_loss(log_probs, targets, lengths, sizes)


def _moving_means(net: Net, states: torch.Tensor, labels: torch.Tensor, others: Any) -> Any:
    pooled = net.head(states[:, 0])[:, :WIDTH]
    nearest = torch.cdist(pooled.detach(), net.codes).argmin(1)
    loss = (pooled - net.codes[nearest]).square().mean()
    with torch.no_grad():
        codes = net.codes.clone()
        codes[nearest] = 0.9 * codes[nearest] + 0.1 * pooled.detach()
        net.codes.copy_(codes)
    return loss


def _counting(net: Net, states: torch.Tensor, labels: torch.Tensor, others: Any) -> Any:
    net.passes += 1
    return _per_sample(net, states, labels, others).mean() * min(1.0, 0.1 * net.passes)


def _contrastive(net: Net, states: torch.Tensor, *_: Any) -> Any:
    left, right = net.head(states[:, 0]), net.head(states[:, 1])
    return functional.cross_entropy(left @ right.T, torch.arange(len(left)))


def _preferring(net: Net, states: torch.Tensor, labels: torch.Tensor, others: Any) -> Any:
    scores = -_per_sample(net, states, labels, others)
    return -functional.logsigmoid(scores - 1.0).mean()


def _focal(net: Net, states: torch.Tensor, labels: torch.Tensor, others: Any) -> Any:
    losses = _token_losses(net, states, labels, reduction="none")
    return ((1 - (-losses).exp()).square() * losses).sum() / (labels >= 0).sum()


def _token_weights(net: Net, states: torch.Tensor, labels: torch.Tensor, others: Any) -> Any:
    weights = others["mask"] * others["weights"][:, None] ** 3
    losses = _token_losses(net, states, labels.clamp(min=0), reduction="none")
    return (losses * weights).sum() / weights.sum()


def _penalty(net: Net, states: torch.Tensor, *_: Any) -> Any:
    squares = net.head(states[:, 0]).square().sum()
    (gradient,) = torch.autograd.grad(squares, states, create_graph=True)
    return gradient.square().sum((1, 2)).mean()


def _pooled(loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Any:
    """Returns a loss of the first token's logits and of the samples' numbers."""
    return lambda net, states, _, others: loss(net.head(states[:, 0]), others["weights"])


def _advantages(rewards: torch.Tensor) -> torch.Tensor:
    return (rewards - rewards.mean()) / (rewards.std() + 1e-4)


CLASSES = torch.linspace(0.5, 2, VOCABULARY)
LOSSES: dict[str, Callable[[Net, torch.Tensor, Any, Any], Any]] = {
    "labels": lambda net, states, labels, _: _token_losses(net, states, labels),
    "shifted inside": _shifted,
    "class weights": lambda *given: _token_losses(*given[:3], weight=CLASSES),
    "sample weights": _weighted,
    "mask": _over_mask,
    "samples": lambda *given: _per_sample(*given).mean(),
    "ctc": _ctc,
    "sum": lambda net, states, labels, _: _token_losses(net, states, labels, reduction="sum"),
    "preferring": _preferring,
    "dropout": _shifted,
    "spectral norm": _shifted,
    "moving means": _moving_means,
    "counting": _counting,
    "contrastive": _contrastive,
    "skipping": _shifted,
    "noise": lambda net, states, *_: (
        (net.head(states[:, 0]) + torch.randn(len(states), 1)).square().mean()
    ),
    "normalised": lambda net, states, *_: net.head(states[:, 0]).exp().mean(),
    "smoothed labels": lambda *given: _token_losses(*given[:3], label_smoothing=0.1),
    "focal": _focal,
    "log-likelihood": lambda net, states, labels, _: functional.nll_loss(
        net.head(states).log_softmax(-1).transpose(1, 2), labels
    ),
    "tokens summed": lambda *given: (
        _token_losses(*given[:3], reduction="sum") / len(given[2])  # over samples
    ),
    "a fixed divisor": lambda *given: _token_losses(*given[:3], reduction="sum") / 50,
    "regression": _pooled(lambda x, y: functional.mse_loss(x[:, 0], y)),
    "huber": _pooled(lambda x, y: functional.huber_loss(x[:, 0], y, delta=0.3)),
    "gaussian": _pooled(lambda x, y: functional.gaussian_nll_loss(x[:, 0], y, x[:, 1].exp())),
    "poisson": _pooled(lambda x, y: functional.poisson_nll_loss(x[:, 0], y)),
    "quantile": _pooled(lambda x, y: torch.maximum(y - x[:, 0], (x[:, 0] - y) / 9).mean()),
    "several labels": _pooled(
        lambda x, y: functional.binary_cross_entropy_with_logits(
            x, (y[:, None] > CLASSES).float(), pos_weight=CLASSES
        )
    ),
    "margins": _pooled(lambda x, y: functional.multi_margin_loss(x, (6 * y).long())),
    "distillation": _pooled(
        lambda x, y: functional.kl_div(
            x.log_softmax(-1), (y[:, None] * CLASSES).softmax(-1), reduction="batchmean"
        )
    ),
    "cosine": _pooled(lambda x, y: functional.cosine_embedding_loss(x[:, :6], x[:, 6:12], y / y)),
    "triplet": _pooled(
        lambda x, _: functional.triplet_margin_loss(x[:, :4], x[:, 4:8], x[:, 8:12])
    ),
    "policy": _pooled(lambda x, y: -(x.log_softmax(-1)[:, 3] * (y - 1)).mean()),
    "double": lambda *given: _shifted(*given).double().reshape(1, 1),
    # of no mean: a sentence refuses them, or train.micro_batch makes them comparable
    "token weights": _token_weights,
    "two means": lambda *given: _shifted(*given) + _per_sample(*given).mean(),
    "further tokens": lambda *given: (
        _shifted(*given) + _token_losses(given[0], given[1][:, :-3], given[2][:, 3:])
    ),
    "padding too": lambda net, states, labels, _: _token_losses(net, states, labels.clamp(min=0)),
    "perplexity": lambda *given: _shifted(*given).exp(),
    "root": _pooled(lambda x, y: functional.mse_loss(x[:, 0], y).sqrt()),
    "dice": _pooled(lambda x, y: 1 - (x.sigmoid() * y[:, None]).sum() / (x.sigmoid() + 1).sum()),
    "hardest": lambda *given: _per_sample(*given).max(),
    "negatives of the batch": _pooled(
        lambda x, _: functional.triplet_margin_loss(x, x * CLASSES, x.roll(1, 0))
    ),
    "pairs": _pooled(lambda x, _: functional.softplus(x[:, :1] - x[None, :, 1]).mean()),
    "variance": _pooled(lambda x, _: (1 - x.std(0)).square().mean()),
    "advantages": _pooled(lambda x, y: -(x.log_softmax(-1)[:, 3] * _advantages(y)).mean()),
    "gradient penalty": _penalty,
    "vector": _per_sample,
    "mapping": lambda *given: {"loss": _shifted(*given), "logits": given[1]},
    "tuple": lambda *given: (_shifted(*given), given[1]),
    "logits first": lambda *given: (given[1], _shifted(*given)),
    "two": lambda *given: {"loss_lm": _shifted(*given), "loss_cls": given[1].mean()},
    "nothing": lambda *given: {"logits": given[1]},
}


def make_adapted(hidden: int = 32) -> Any:
    """Returns a Llama with adapters of peft, and the batch maker of `make`."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=LONGEST,
    )
    adapters = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    _, batch = make()

    def masked(numbers: tuple[int, ...]) -> dict[str, Any]:
        made = batch(numbers)
        mask = made["mask"].long()
        return {"input_ids": made["input_ids"], "labels": made["labels"], "attention_mask": mask}

    return get_peft_model(LlamaForCausalLM(config), adapters), masked


def make(
    loss: str = "labels", says_targets: bool = False, as_arrays: bool = False, ends: int = 0
) -> Any:
    """Returns a module with a loss, and its batch maker.

    Args:
        loss: One of `LOSSES`.
        says_targets: Batches have the sum of the class weights of their labels as `targets`.
        ends: Samples in the data; 0 without an end.
        as_arrays: Batches have arrays and lists in place of tensors, and a text and a switch.
    """
    drawn = np.random.default_rng(0)
    lengths = [4 + n % 6 for n in range(SAMPLES)]
    lengths[:2] = [LONGEST, LONGEST]  # the first two have one length
    rows = [drawn.integers(1, VOCABULARY, size) for size in lengths]
    weights = torch.linspace(0.5, 2, SAMPLES)

    def batch(numbers: tuple[int, ...]) -> dict[str, Any]:
        if ends and max(numbers) >= ends:
            raise IndexError(max(numbers))
        numbers = tuple(number % SAMPLES for number in numbers)
        width = max(lengths[n] for n in numbers)
        ids, labels = np.zeros((len(numbers), width), int), np.full((len(numbers), width), -100)
        for row, n in enumerate(numbers):
            ids[row, : lengths[n]] = labels[row, : lengths[n]] = rows[n]
            labels[row, : n // 2 % 3] = -100  # what a prompt has
        made = {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}
        made["mask"] = (made["input_ids"] > 0).float()
        made["weights"] = weights[list(numbers)]
        if says_targets:
            counted = made["labels"][made["labels"] >= 0]
            made["targets"] = float(CLASSES[counted].sum())
        if as_arrays:
            return {
                "input_ids": ids.tolist(),
                "labels": labels,
                "mask": made["mask"].numpy(),
                "weights": made["weights"].numpy(),
                "nested": {"weights": made["weights"]},
                "return_loss": True,
                "names": ["a text"] * len(numbers),
                "nothing": None,
            }
        return made

    return (Net(loss), batch, ends) if ends else (Net(loss), batch)
