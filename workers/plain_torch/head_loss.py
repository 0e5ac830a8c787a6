"""The end of a language model: head and loss in one, without the logits of all tokens at once."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

IGNORED_LABEL = -100
# Parts of a micro-batch's tokens. Enough to make logits a small share of the peak; with more, the
# gradient of the head would be read and written more often than its products take.
LOSS_CHUNKS = 8


def replace_loss(model: nn.Module, kind: str, *, shifts: bool, vocab_multiple: int = 1) -> bool:
    """Has the head of a model of transformers compute the loss, in place.

    The model's own forward gets no labels; called without any, it is as it was. Its head returns
    the loss in place of logits. It computes within its call, since FSDP2 and ZeRO-3 gather weights
    for the call of a module.

    Args:
        model: It returns `logits`, which are its output embeddings' and nothing else.
        kind: whole, chunked, compiled or fused.
        shifts: The loss at a token is of the next one, as in causal models.
        vocab_multiple: The products of the head have a multiple of so many words; its weight has
            not. GPUs are slow at products of odd sizes.

    Returns:
        False if the model has no such head, as a stage of a pipeline; it is then unchanged.
    """
    head: Any = None
    with contextlib.suppress(AttributeError):  # no model of transformers, or a stage without a head
        head = model.get_output_embeddings()  # type: ignore[operator]
    if type(head) is not nn.Linear:
        return False
    labels: list[torch.Tensor] = []
    losses: dict[str, Callable[..., torch.Tensor]] = {"chunked": chunked_loss, "fused": fused_loss}
    losses["whole"] = whole_loss
    loss = losses[kind] if kind in losses else torch.compile(whole_loss)

    def take_labels(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        labels[:] = () if kwargs.get("labels") is None else (kwargs["labels"],)
        if not labels:
            return None
        others = {name: value for name, value in kwargs.items() if name != "labels"}
        if getattr(module.config, "is_encoder_decoder", False):
            made = module.prepare_decoder_input_ids_from_labels(labels=labels[0])
            others.setdefault("decoder_input_ids", made)
        return args, others

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        if not labels:
            return nn.Linear.forward(head, hidden)
        wanted = labels[0]
        if shifts:
            wanted = nn.functional.pad(wanted, (0, 1), value=IGNORED_LABEL)[:, 1:]
        hidden = hidden.flatten(0, -2)
        weight, bias = pad_words(head.weight, head.bias, vocab_multiple)
        if torch.is_autocast_enabled(hidden.device.type):
            hidden = hidden.to(torch.get_autocast_dtype(hidden.device.type))
        with torch.autocast(hidden.device.type, enabled=False):
            return loss(hidden, weight, bias, wanted.flatten()).reshape(1, 1, 1)

    def return_loss(_: Any, __: Any, output: Any) -> Any:
        return {"loss": output.logits.reshape(())} if labels else None

    head.forward = forward  # type: ignore[assignment, method-assign]
    model.register_forward_pre_hook(take_labels, with_kwargs=True)
    model.register_forward_hook(return_loss)
    return True


def pad_words(
    weight: torch.Tensor, bias: torch.Tensor | None, multiple: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns weight and bias of a head with words that have no share in the loss, nor a gradient.

    Their outputs are -inf.
    """
    if not (words := -len(weight) % multiple):
        return weight, bias
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    rows, outputs = weight.new_zeros(words, weight.shape[1]), bias.new_full((words,), -torch.inf)
    return torch.cat([weight, rows]), torch.cat([bias, outputs])


def whole_loss(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, labels: torch.Tensor
) -> torch.Tensor:
    """Returns the mean loss over the labels that are not ignored, from all logits."""
    logits = _logits(hidden, weight.to(hidden.dtype), bias).float()
    return nn.functional.cross_entropy(logits, labels, ignore_index=IGNORED_LABEL)


def _logits(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    # not `linear`, which DeepSpeed replaces by a function of its own
    return hidden @ weight.t() if bias is None else bias.to(hidden.dtype).addmm(hidden, weight.t())


def fused_loss(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, labels: torch.Tensor
) -> torch.Tensor:
    """Returns the same by Liger's kernel, on CUDA."""
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    bias = None if bias is None else bias.to(hidden.dtype)
    loss: torch.Tensor = LigerFusedLinearCrossEntropyLoss(ignore_index=IGNORED_LABEL)(
        weight.to(hidden.dtype), hidden, labels, bias
    )
    return loss


def chunked_loss(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, labels: torch.Tensor
) -> torch.Tensor:
    """Returns the same from the logits of `LOSS_CHUNKS` parts, one at a time.

    Forward computes the gradients too, so that no logits are kept and none are computed twice. Sums
    of gradients are in fp32 and not yet divided, so that neither many tokens nor 16 bits lose small
    ones. torch's `linear_cross_entropy` does the same in one operator, whose products no trace can
    see, and which divides first: gradients in fp16 would vanish before the loss is scaled.

    Source:
        torch/nn/modules/linear_cross_entropy.py (2.13).
    """
    function: Any = _ChunkedLoss  # `apply` of torch has no types
    total, count = function.apply(hidden, weight, bias, labels, torch.is_grad_enabled())
    mean: torch.Tensor = total / count
    return mean


def _add_chunk(
    hidden: torch.Tensor,
    labels: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    sums: tuple[torch.Tensor | None, ...],
) -> torch.Tensor:
    """Returns the sum of a chunk's losses; writes or adds its gradients to `sums`.

    These are those of the chunk's hidden states, of the weight and of the bias, None if not needed.
    """
    logarithms = nn.functional.log_softmax(_logits(hidden, weight, bias).float(), dim=-1)
    counts = labels != IGNORED_LABEL
    at, kept = torch.where(counts, labels, 0)[:, None], counts[:, None]
    loss = -(logarithms.gather(1, at)[:, 0] * counts).sum()
    if all(one is None for one in sums):
        return loss
    slope = logarithms.exp_()
    slope.scatter_add_(1, at, slope.new_full((1, 1), -1.0).expand(at.shape))
    of_hidden, of_weight, of_bias = sums
    if of_bias is not None:
        of_bias += counts.float() @ slope
    narrow, used = slope.to(hidden.dtype), hidden * kept  # fewer numbers to leave out than slopes
    if of_hidden is not None:
        of_hidden.copy_((narrow @ weight) * kept)
    if of_weight is not None and used.dtype == of_weight.dtype:
        of_weight.addmm_(narrow.t(), used)
    elif of_weight is not None:
        of_weight += narrow.t() @ used
    return loss


class _ChunkedLoss(torch.autograd.Function):
    """Sum of the losses, and the number of labels."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        trains: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, narrow = (hidden, weight, bias), (hidden.dtype, torch.float32, torch.float32)
        ctx.gradients = [
            torch.zeros_like(one, dtype=dtype) if trains and needed and one is not None else None
            for one, dtype, needed in zip(inputs, narrow, ctx.needs_input_grad, strict=False)
        ]
        ctx.dtypes = [None if one is None else one.dtype for one in inputs]
        of_hidden, *others = ctx.gradients
        rows = [None] * LOSS_CHUNKS if of_hidden is None else of_hidden.tensor_split(LOSS_CHUNKS)
        parts = zip(hidden.tensor_split(LOSS_CHUNKS), labels.tensor_split(LOSS_CHUNKS), strict=True)
        factors, total = weight.to(hidden.dtype), hidden.new_zeros((), dtype=torch.float32)
        for row, part in zip(rows, parts, strict=True):
            total += _add_chunk(*part, factors, bias, (row, *others))
        count = (labels != IGNORED_LABEL).sum()
        ctx.mark_non_differentiable(count)
        return total, count

    @staticmethod
    def backward(ctx: Any, scale: torch.Tensor, _: Any) -> Any:
        gradients, ctx.gradients = ctx.gradients, None
        scaled = (
            None if one is None else one.mul_(scale).to(dtype)
            for one, dtype in zip(gradients, ctx.dtypes, strict=True)
        )
        return (*scaled, None, None)
