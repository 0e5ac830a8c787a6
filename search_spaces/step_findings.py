"""Findings of the probe of a training step: its loss, its weights and its state."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class LossForm(StrEnum):
    """Place of the loss in what `forward` returns."""

    TENSOR = "tensor"
    ATTRIBUTE = "attribute"  # `.loss` of an object
    MAPPING = "mapping"  # under "loss"
    TUPLE = "tuple"  # the first element, or the only scalar that has a gradient
    VECTOR = "vector"  # one loss for each sample
    NONE = "none"


class Fit(StrEnum):
    """Result of the search for weights with which the losses of parts make that of the whole."""

    FOUND = "found"
    AMBIGUOUS = "ambiguous"  # several rules fit; the samples do not tell them apart
    HIDDEN = "hidden"  # weights exist that no entry of the batch gives: it must return `targets`
    PADDING = "padding"  # a rule fits among samples of one shape only
    NOTHING = "nothing"  # the loss of a sample depends on the others


class Count(StrEnum):
    """Weight of a micro-batch's loss, of its samples or of one entry of the batch."""

    VALUE = "value"  # the entry is the weight, as `targets`
    LABELS = "labels"  # integers that are not negative, as -100 is
    SHIFTED_LABELS = "shifted-labels"  # the same, without the first of each row
    SAMPLES = "samples"
    SUM = "sum"  # of the values, as of a mask or of weights
    SHIFTED_SUM = "shifted-sum"
    NONZERO = "nonzero"  # values other than 0, as of token ids padded with it
    SHIFTED_NONZERO = "shifted-nonzero"
    ONE = "one"  # the loss is a sum, so that losses add up


class Recomputation(StrEnum):
    """Result of a pass that recomputes, compared with one that does not."""

    SAME = "same"
    GRADIENT = "gradient"  # its own or the next one differs, as state changes twice
    FAILS = "fails"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRule:
    """A rule that gives each micro-batch the weight of its loss: a count, and the entry counted."""

    count: Count
    key: str = ""  # dotted inside nested mappings; empty for `SAMPLES` and `ONE`


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFindings:
    """Findings of some forward and backward passes in training mode; names are of parameters.

    Attributes:
        loss_form: Place of the loss in the output.
        mean_over: The rules that reproduce the loss of a batch from those of its parts; the first
            weighs micro-batches.
        fit: How well rules fit.
        nearest: The rule with the least error, if none fits; None if no part can run.
        nearest_error: Its error: the share by which loss or gradients differ; 0 if a rule fits.
        ratios: With `Fit.HIDDEN`, the weights of the probed samples over that of the first.
        smallest_batch: Fewest samples whose loss can be computed.
        unused: Trainable, but without gradient in every pass.
        varying: With a gradient in some passes only.
        tied: Names of one weight, joined by " = ".
        frozen: Parameters that are not trained [count].
        dtypes: Data types of the weights, without "torch.".
        changed_state: Buffers that a pass in training mode changes.
        carries_state: True if a pass changes the loss or gradient of the next.
        carried_share: By how much, of the loss or gradient.
        unsaved_state: True if state outside buffers does that.
        draws: True if passes draw random numbers.
        recomputation: Effect of recomputing blocks.
        not_probed: Reason why no pass ran; empty if the step was probed. Micro-batches are then
            weighed as the keys of the batch suggest.
    """

    loss_form: LossForm = LossForm.NONE
    mean_over: tuple[TargetRule, ...] = ()
    fit: Fit = Fit.NOTHING
    nearest: TargetRule | None = None
    nearest_error: float = 0.0
    ratios: tuple[float, ...] = ()
    smallest_batch: int = 1
    unused: tuple[str, ...] = ()
    varying: tuple[str, ...] = ()
    tied: tuple[str, ...] = ()
    frozen: int = 0
    dtypes: tuple[str, ...] = ()
    changed_state: tuple[str, ...] = ()
    carries_state: bool = False
    carried_share: float = 0.0
    unsaved_state: bool = False
    draws: bool = False
    recomputation: Recomputation = Recomputation.SAME
    not_probed: str = ""
