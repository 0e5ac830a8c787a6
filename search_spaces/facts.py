"""Facts about a sweep's model, cluster, code and data, as plain values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import isfinite
from typing import Literal

from search_spaces.plan import Attention
from search_spaces.safety.files import packaged_table
from search_spaces.specification.schema import SweepSpec, Task
from search_spaces.specification.sections import Base

Dependence = Literal["padding", "batch", "attention", "data"]
DataForm = Literal[  # of text: the unit that makes one sample
    "JSON lines", "JSON array", "JSON objects", "CSV", "parquet", "Arrow",
    "paragraph", "line", "file",
]  # fmt: skip
TEXT_FORMS = ("paragraph", "line", "file")
SkipReason = Literal["null", "empty", "one token"]
# Shares below which outputs, and losses, are the same: fp32 sums in another order
SAME_OUTPUTS, SAME_LOSS = 1e-4, 1e-5


class LossForm(StrEnum):
    """Place of the loss in what `forward` returns."""

    TENSOR = "tensor"
    ATTRIBUTE = "attribute"  # `.loss` of an object
    MAPPING = "mapping"  # under "loss"
    TUPLE = "tuple"  # the first element, or the only scalar that has a gradient
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


SAMPLES = TargetRule(count=Count.SAMPLES)


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
        smallest_batch: Fewest samples whose loss can be computed.
        unused: Trainable, but without gradient in every pass.
        varying: With a gradient in some passes only.
        tied: Names of one weight, joined by " = ".
        dtypes: Data types of the weights, without "torch."; with words of those that are odd.
        changed_state: Buffers and weights that a forward pass in training mode changes.
        carries_state: True if a pass changes the loss or gradient of the next.
        carried_share: By how much, of the loss or gradient.
        unsaved_state: True if state outside buffers does that.
        draws: True if passes draw random numbers.
        differentiates: True if the forward pass runs backward passes of its own.
        recomputation: Effect of recomputing blocks.
        not_probed: Reason why no pass ran; empty if the step was probed. Micro-batches are then
            weighted as the keys of the batch suggest.
        fails: True if the user's own code raised that reason on this machine's CPU.
    """

    loss_form: LossForm = LossForm.NONE
    mean_over: tuple[TargetRule, ...] = ()
    fit: Fit = Fit.NOTHING
    nearest: TargetRule | None = None
    nearest_error: float = 0.0
    smallest_batch: int = 1
    unused: tuple[str, ...] = ()
    varying: tuple[str, ...] = ()
    tied: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    changed_state: tuple[str, ...] = ()
    carries_state: bool = False
    carried_share: float = 0.0
    unsaved_state: bool = False
    draws: bool = False
    differentiates: bool = False
    recomputation: Recomputation = Recomputation.SAME
    not_probed: str = ""
    fails: bool = False


def share_words(share: float) -> str:
    """Formats a share with two digits that are not zero: `0.039 %`, `9.3 %`, `45 %`."""
    if not isfinite(share):
        return "an infinite share: that of one sample alone is 0 or not finite"
    percentage = 100 * share
    return f"{percentage:.2g} %" if percentage < 99.5 else f"{percentage:,.0f} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """Support of a model for tensor parallelism.

    Attributes:
        refusal: Reason if tensor parallelism is impossible; None if it works.
        divisors: Counts that a tensor degree must divide, with their names ("attention heads", 32).
        sequence_refusal: Reason if sequence parallelism is impossible; None if it works.
        by_transformers: True if transformers has a plan of its own.
    """

    refusal: str | None = None
    divisors: tuple[tuple[str, int], ...] = ()
    sequence_refusal: str | None = None
    by_transformers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertFacts:
    """A mixture of experts.

    Attributes:
        count: Experts of a layer, which expert ranks must divide.
        layers: Layers of experts.
        per_token: Experts that a token uses.
        parameters: Parameters of all experts.
        refusal: Reason if ranks cannot divide the experts of a layer; None if they can.
        kernels: Whether transformers has several kernels for them.
    """

    count: int
    layers: int
    per_token: int
    parameters: int
    refusal: str | None = None
    kernels: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LossDependence:
    """A finding of a model's probe: knobs that change its loss.

    Attributes:
        on: What the loss of a sample depends on: `padding` of its row, the other samples of its
            micro-`batch`, the implementation of `attention`, or `data` that is not the same for the
            same sample numbers.
        knobs: The knobs that change it; empty for all.
        share: By how much, of the largest output or of the loss.
    """

    on: Dependence
    knobs: tuple[str, ...]
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerFacts:
    """Facts about a `train.optimizer` other than adamw.

    Attributes:
        state_bytes: Bytes of its states per trained parameter.
        update_bytes: Bytes of its temporaries per trained parameter.
        elementwise: True if it is known to update each element alone, so that weights may be split.
    """

    state_bytes: float = 8.0
    update_bytes: float = 0.0
    elementwise: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFacts:
    """Source of a model's own batches, such as `list in memory`, and the entries of a sample."""

    source: str
    samples: int | None  # None if no end is known
    entries: tuple[tuple[str, str], ...]  # name, and types with sizes such as `int64[12..80, 4]`


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts about a model before it is built; parameters are counts.

    Attributes:
        name: Name in the specification.
        architecture: Class of the model.
        task: Task that it is trained for; None for a function.
        parameters: All parameters.
        blocks: Repeated layers, the unit of recomputation, sharding and pipelining.
        attentions: Attention implementations of the architecture.
        packing: Those of `attentions` that separate packed samples.
        vocab_size: Size of the vocabulary; None if the model makes its own batches.
        trainable: Parameters that training changes; None for all.
        base: How frozen weights are held beside adapters; None without adapters.
        experts: Facts about its experts; None for a model without, or with other ones.
        attention_heads: Heads that context ranks divide.
        context_refusal: Reason if they cannot; None if they can.
        block_parameters: Parameters of each block.
        embedding_parameters: Parameters before the first block; includes tied weights.
        head_parameters: Parameters after the last block; includes tied weights.
        tensor: Support for tensor parallelism.
        pipeline_refusal: Reason if the model cannot be pipelined; None if it can.
        loss_refusal: Reason if its head cannot compute the loss; None if it can.
        tile_refusal: Reason if its MLPs cannot compute tiles of a sequence; None if they can.
        float8_share: Share of its blocks' parameters that plain linear layers have whose sizes
            divide 16, as products in 8 bits need.
        bypasses_hooks: True if it calls the forward of its blocks itself, past their hooks.
        padding_difference: Share by which outputs for a sample change beside a longer one.
        padding_from: Tokens of a row from which that happens.
        batch_difference: Share by which the loss of two samples differs from the mean of theirs.
        smallest_micro_batch: Fewest samples whose loss can be computed, as by batch statistics.
        data_difference: Share of the values of a batch that differ when it is made again.
        unused_weights: Names of a function's trained weights that get no gradient in a pass without
            memory; `step` has those that its probe found.
        shared_in_blocks: Names of one weight that a block shares with another part; empty if no
            block does.
        widened: Types of a function's weights that became fp32, in which weights are trained.
        attention_differences: Share by which outputs differ from those of the first of
            `attentions`, for each other one.
        batches: What a function's batches are; None for other models.
        optimizer: Facts about `train.optimizer`, if it is not adamw.
        step: Findings about a step of training; None if it was not looked at.
    """

    name: str
    architecture: str
    parameters: int
    blocks: int
    attentions: tuple[Attention, ...]
    packing: tuple[Attention, ...]
    task: Task | None = None
    vocab_size: int | None = None
    trainable: int | None = None
    base: Base | None = None
    experts: ExpertFacts | None = None
    attention_heads: int = 1
    context_refusal: str | None = "its attention is not known"
    block_parameters: tuple[int, ...] = ()
    embedding_parameters: int = 0
    head_parameters: int = 0
    tensor: TensorFacts = TensorFacts()
    pipeline_refusal: str | None = None
    loss_refusal: str | None = None
    tile_refusal: str | None = None
    float8_share: float = 0.0
    bypasses_hooks: bool = False
    padding_difference: float = 0.0
    padding_from: int = 0
    batch_difference: float = 0.0
    smallest_micro_batch: int = 1
    data_difference: float = 0.0
    unused_weights: tuple[str, ...] = ()
    shared_in_blocks: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()
    attention_differences: tuple[tuple[Attention, float], ...] = ()
    batches: BatchFacts | None = None
    optimizer: OptimizerFacts = OptimizerFacts()
    step: StepFindings | None = None

    @property
    def target_rule(self) -> TargetRule | None:
        """The rule that weighs micro-batches, alike if none fits; None to go by a batch's keys."""
        if self.step is None or not self.step.mean_over:
            return None
        return self.step.mean_over[0] if self.step.nearest is None else SAMPLES

    @property
    def dependences(self) -> tuple[LossDependence, ...]:
        """Findings of the probe that change the loss."""
        found: tuple[tuple[Dependence, tuple[str, ...], float], ...] = (
            ("data", (), self.data_difference),
            ("batch", ("micro_batch", "micro_batch_tokens", "batching"), self.batch_difference),
            (
                "padding",
                ("micro_batch", "batching", "pad_multiple", "sequence_parallel"),
                self.padding_difference,
            ),
            ("attention", ("attention",), max((0.0, *dict(self.attention_differences).values()))),
        )
        return tuple(
            LossDependence(on=on, knobs=knobs, share=share)
            for on, knobs, share in found
            if share > (SAME_OUTPUTS if on in ("padding", "attention") else SAME_LOSS)
        )

    @property
    def varying_weights(self) -> tuple[str, ...]:
        """Names of weights that have a gradient in some passes only: DDP alone can train them."""
        return self.step.varying if self.step else ()

    @property
    def has_unused_weights(self) -> bool:
        """True if a pass may leave weights without gradient, for which DDP would wait."""
        probed = self.step.unused if self.step else ()
        return bool(self.unused_weights or self.varying_weights or probed)

    @property
    def active(self) -> int | None:
        """Parameters that one token uses, in a mixture of experts; None for all."""
        if self.experts is None:
            return None
        idle = 1 - min(self.experts.per_token / self.experts.count, 1)
        return round(self.parameters - idle * self.experts.parameters)

    @property
    def trainable_parameters(self) -> int:
        """Parameters with gradients and optimizer states."""
        return self.parameters if self.trainable is None else self.trainable


def with_findings(facts: ModelFacts, step: StepFindings | None) -> ModelFacts:
    """Returns the facts with the findings of a step's probe, and what follows from them."""
    if step is None:
        return facts
    return replace(
        facts,
        step=step,
        batch_difference=max(step.nearest_error, step.carried_share),
        smallest_micro_batch=step.smallest_batch,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """Facts about the machines before a trial runs.

    Attributes:
        device: "cpu", "cuda" or "tpu".
        slots: Ranks that fit at once.
        memory_limit_bytes: Memory limit per rank; None if only the machine limits it.
        node_slots: Ranks that fit on one node; None if unknown.
        lacks: Features that a worker's machine lacks, each with reason and remedy in one sentence;
            `workers.probe.doctor` has their names.
    """

    device: str
    slots: int
    memory_limit_bytes: int | None
    node_slots: int | None = None
    lacks: tuple[tuple[str, str], ...] = ()

    def lack(self, feature: str) -> str | None:
        """Returns the reason if the machines lack a feature; None if they have it."""
        return known_lacks(self.device).get(feature) or dict(self.lacks).get(feature)


NO_DEVICE = "device"  # the feature of a node that has no device of the type


def known_lacks(device: str) -> Mapping[str, str]:
    """Returns the features that every device of a type lacks, each with its reason."""
    table: Mapping[str, Mapping[str, str]] = packaged_table("search_spaces", "devices/lacks.yaml")
    return table.get(device, {})


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeVersion:
    """The commit of a folder."""

    commit: str
    branch: str  # empty for a detached head
    remote: str  # URL without user, password and query; empty without a remote
    modified: bool  # tracked files differ from the commit


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthBin:
    """Number of samples with `shortest` to `longest` tokens, inclusive."""

    shortest: int
    longest: int
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReading:
    """Result of reading files: the form of their content, and what became samples.

    Attributes:
        forms: Forms of the files, by content; one sample a paragraph, line or file for plain text.
        fields: Fields of records that hold the text; empty for plain text.
        chat: How messages became text; None if there are none.
        is_tokens: True if the fields hold tokens, which a tokenizer wrote.
        complete: False if large files were read in part.
        samples: Samples in what was read, before they were thinned out.
        cut: Samples of those kept that are longer than the sequence length.
        skipped: Records that are no samples, by reason.
    """

    forms: tuple[DataForm, ...]
    fields: tuple[str, ...]
    chat: Literal["template", "joined"] | None
    complete: bool
    samples: int
    cut: int = 0
    skipped: tuple[tuple[SkipReason, int], ...] = ()
    is_tokens: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DataProfile:
    """The samples of a sweep.

    The digest depends on every token and length, hence on the files, the tokenizer, the sequence
    length and, for generated samples, the seed.
    """

    name: str
    digest: str
    files: tuple[str, ...]  # absolute paths; empty if the samples are generated
    tokenizer: str  # empty if it is trained on the files, or not needed
    samples: int
    tokens: int
    histogram: tuple[LengthBin, ...]  # by length, without empty bins
    median: int = 0  # tokens of a sample
    reading: DataReading | None = None  # None if the samples are generated


@dataclass(frozen=True, slots=True, kw_only=True)
class Understanding:
    """A job as it is understood; `orchestrator.report.understood` has the words.

    Attributes:
        data: Profile of the data; None if the model makes its own batches.
        model: Facts of the model.
        cluster: The machines.
        ranks: Ranks of a plan.
    """

    data: DataProfile | None
    model: ModelFacts
    cluster: ClusterFacts
    ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """User, code and data of a sweep at the start of its driver."""

    at: float  # seconds since the epoch
    user: str
    is_job: bool  # True if a scheduler ran it: a Ray job or Slurm
    code: CodeVersion | None
    context: tuple[tuple[str, str], ...] = ()  # tags of `MLFLOW_RUN_CONTEXT`; they take precedence
    data: DataProfile | None = None  # None for models that make their own batches


def provenance_at(provenances: Sequence[Provenance], moment: float) -> Provenance | None:
    """Returns the provenance of the driver that ran at a moment, in seconds since the epoch.

    Returns:
        The latest provenance up to the moment; None before the first one.
    """
    earlier = [provenance for provenance in provenances if provenance.at <= moment]
    return max(earlier, key=lambda provenance: provenance.at, default=None)


def planned_cluster(spec: SweepSpec, slots: int) -> ClusterFacts:
    """Returns a cluster of exactly `slots` ranks, as the specification describes it."""
    return ClusterFacts(
        device=spec.cluster.device, slots=slots, memory_limit_bytes=spec.memory_limit_bytes
    )
