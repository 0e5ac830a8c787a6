"""Values of each knob that are searched if the specification names none.

A knob is searched by default if it is likely to decide which plans fit or which is fastest on the
machines at hand. The others keep their default unless `space` names them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

from search_spaces.facts import ClusterFacts, ModelFacts
from search_spaces.plan import AdamW, Optimizer
from search_spaces.settings.trainers import trainer_table
from search_spaces.specification.schema import GIB, SweepSpec

Values = tuple[Any, ...]
_ADAMW: tuple[Optimizer, ...] = (*get_args(AdamW), "adafactor")
Chosen = Mapping[str, Any]

CHECKPOINT_RATIOS = (0.0, 0.25, 0.5, 0.75, 1.0)
NODE_RANKS = 8  # ranks of a node: across nodes, tensor parallelism waits for the network
_PAD_MULTIPLE = 64  # tokens
_NODES_PER_REPLICA = (1, 2, 4, 8)  # of hybrid sharding, with `NODE_RANKS` ranks each
_STATE_BYTES = 16  # per trained parameter: fp32 weight, gradient and the two moments of Adam
_LONG = 2**15  # tokens
_WORDS = 2**14  # of a vocabulary whose logits may decide
_SMALL_DEVICE_BYTES = 16 * GIB  # a small training GPU, assumed if the memory limit is unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainContext:
    """Inputs that a knob's values may depend on; `chosen` holds the knobs in its `depends_on`."""

    spec: SweepSpec
    model: ModelFacts
    cluster: ClusterFacts
    workers: int
    chosen: Chosen

    @property
    def accelerated(self) -> bool:
        """True if the ranks are GPUs or TPUs."""
        return self.cluster.device in ("cuda", "tpu")


def powers_of_two(most: int) -> Values:
    """Returns 1, 2, 4 and so on, up to `most`."""
    return tuple(2**power for power in range(most.bit_length()) if 2**power <= most)


def engines(choice: DomainContext) -> Values:
    """Adds DeepSpeed only where nothing else helps: on one GPU that needs to offload.

    A trainer without engine torch gets its own.
    """
    if (trainer := choice.spec.trainer) != "own":
        able = tuple(knobs.engine for knobs in trainer_table()[trainer].expressed)
        if "torch" not in able:
            return able
    lack = choice.cluster.lack("deepspeed") or choice.cluster.lack("cpu_adam")
    one_gpu = choice.accelerated and choice.workers == 1 and choice.spec.train.method == "full"
    return ("torch", "deepspeed") if one_gpu and not lack and _is_tight(choice, 1) else ("torch",)


def tensor_degrees(choice: DomainContext) -> Values:
    """Adds degrees above 1 within a node, if data ranks alone would lack memory or samples.

    Source:
        Narayanan et al. 2021, arXiv:2104.04473, takeaways 1 and 2: split a model only as far as
        it needs to fit, with tensor parallelism within a node and pipelines across nodes.
    """
    facts, train = choice.model.tensor, choice.spec.train
    scarce = _is_tight(choice, 1) or train.global_batch % choice.workers
    needed = choice.accelerated and choice.chosen["engine"] == "torch" and scarce
    if not needed or facts.refusal or train.method == "lora":
        return (1,)
    return tuple(
        degree
        for degree in powers_of_two(min(choice.workers, NODE_RANKS))
        if choice.workers % degree == 0
        if all(count % degree == 0 for _, count in facts.divisors)
    )


def pipeline_degrees(choice: DomainContext) -> Values:
    """Adds degrees above 1 only across nodes: see `tensor_degrees`.

    Degrees are powers of two, and divisors of the number of blocks, which make equal stages.
    """
    model, train = choice.model, choice.spec.train
    scarce = _is_tight(choice, 1) or train.global_batch % choice.workers
    needed = choice.accelerated and choice.workers > NODE_RANKS and scarce
    torch = choice.chosen["engine"] == "torch"
    if not needed or not torch or model.pipeline_refusal or train.method == "lora":
        return (1,)
    ranks = choice.workers // choice.chosen["tensor"]
    most = min(ranks, max(model.blocks, 1))
    even = {degree for degree in range(1, most + 1) if model.blocks % degree == 0}
    degrees = sorted(even.union(powers_of_two(most)))
    return tuple(degree for degree in degrees if ranks % degree == 0)


def data_degrees(choice: DomainContext) -> Values:
    """Returns all ranks that tensor and pipeline leave."""
    chosen = choice.chosen
    return (max(choice.workers // (chosen["tensor"] * chosen["pipeline"]), 1),)


def zero_stages(choice: DomainContext) -> Values:
    """Returns all stages of the engine; on one data rank, only those that offload needs."""
    if choice.chosen["engine"] == "torch":
        return (0, 2, 3) if choice.chosen["data"] > 1 else (0,)
    if choice.chosen["data"] > 1:
        return (0, 1, 2, 3)
    named = choice.spec.named
    offloads = choice.accelerated or named("offload_optimizer") or named("offload_parameters")
    return (0, 2, 3) if offloads else (0,)


def replica_counts(choice: DomainContext) -> Values:
    """Adds replicas of one or a few nodes on larger clusters, if the states fit in a replica.

    Source:
        Zhao et al. 2023, arXiv:2304.11277, section 3.2.2: hybrid sharding keeps most traffic
        within nodes.
    """
    chosen = choice.chosen
    if not choice.accelerated or choice.workers <= NODE_RANKS:
        return (1,)
    spans = [nodes * NODE_RANKS // chosen["tensor"] for nodes in _NODES_PER_REPLICA]
    model_ranks = chosen["tensor"] * chosen["pipeline"]
    counts = {
        chosen["data"] // shards
        for shards in spans
        if 1 < shards < chosen["data"] and chosen["data"] % shards == 0
        if _state_bytes(choice) / (model_ranks * shards) <= _limit_bytes(choice)
    }
    return (1, *sorted(counts))


def experts_kernels(choice: DomainContext) -> Values:
    """Adds eager on GPUs, where few large experts fill them one by one; CPUs have one kernel."""
    experts = choice.model.experts
    return ("grouped_mm", "eager")[: 1 + bool(choice.accelerated and experts and experts.kernels)]


def expert_degrees(choice: DomainContext) -> Values:
    """Adds the degrees within a node that divide the data ranks and the experts of a layer.

    Source:
        DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.2: tokens go to as few nodes as possible,
        since links between them are several times slower.
    """
    chosen, facts = choice.chosen, choice.model.experts
    lacks = choice.spec.train.method == "lora" or choice.cluster.lack("expert_ranks")
    if facts is None or facts.refusal or chosen["replicas"] > 1 or lacks:
        return (1,)
    most = powers_of_two(min(chosen["data"], NODE_RANKS, facts.count))
    return tuple(ranks for ranks in most if chosen["data"] % ranks == facts.count % ranks == 0)


def context_degrees(choice: DomainContext) -> Values:
    """Adds degrees within a node where data ranks alone would lack samples, or room for one row.

    A row of `_LONG` tokens or more may have activations that no micro-batch of one fits.
    """
    chosen, model, train = choice.chosen, choice.model, choice.spec.train
    scarce = train.global_batch % chosen["data"] > 0 or train.sequence_length >= _LONG
    if not choice.accelerated or not scarce or model.context_refusal is not None:
        return (1,)
    degrees = powers_of_two(min(chosen["data"], NODE_RANKS))
    return tuple(
        ranks for ranks in degrees if chosen["data"] % ranks == model.attention_heads % ranks == 0
    )


def reshard_ranks(choice: DomainContext) -> Values:
    """Adds the ranks of a node on larger clusters: backward then gathers weights within nodes."""
    chosen = choice.chosen
    spread = chosen["data"] > NODE_RANKS and chosen["data"] % NODE_RANKS == 0
    whole = chosen["tensor"] == chosen["pipeline"] == chosen["replicas"] == 1
    return (0, NODE_RANKS) if choice.accelerated and spread and whole else (0,)


def micro_batches(choice: DomainContext) -> Values:
    """Returns powers of two that divide a data rank's samples per step, and all of its samples.

    If the loss depends on the micro-batch, it is the user's own.
    """
    if choice.spec.train.micro_batch is not None:
        return (choice.spec.train.micro_batch,)
    groups = choice.chosen["data"] // choice.chosen["context"]
    per_rank = max(choice.spec.train.global_batch // max(groups, 1), 1)
    divisors = {size for size in powers_of_two(per_rank) if per_rank % size == 0}
    return tuple(sorted(divisors | {per_rank}))


def batchings(choice: DomainContext) -> Values:
    """Returns padded alone if all samples have one length, else all that the model supports."""
    if choice.spec.data.kind == "fixed":
        return ("padded",)
    return ("padded", "grouped", "packed") if choice.model.packing else ("padded", "grouped")


def pad_multiples(choice: DomainContext) -> Values:
    """Adds 64 on GPUs if samples differ in length: some kernels are planned for each new width.

    Of the widths of micro-batches, 64 leaves about a sixth for 2 to 5 % more tokens (200 batches of
    4 samples, log-normal lengths); 8 leaves most, and 128 doubles the padding. On CPUs no
    such cost is known.

    Source:
        github.com/modelscope/FunASR/issues/3704: on a B200, steps with a new width took 1.05 s, the
        others 0.098 s, since cuDNN plans attention for each shape.
    """
    length, varied = choice.spec.train.sequence_length, choice.spec.data.kind != "fixed"
    rounded = choice.accelerated and varied and length % _PAD_MULTIPLE == 0
    return (1, _PAD_MULTIPLE) if rounded and choice.model.vocab_size is not None else (1,)


def token_limits(choice: DomainContext) -> Values:
    """Adds half of the tokens of the longest samples on GPUs, if most are half as long or less.

    Only in grouped batches are few tokens padding. Lengths of text are not known before it is read.
    """
    chosen, lengths = choice.chosen, choice.spec.data.lengths
    mean = sum(length * share for length, share in lengths.items()) / (sum(lengths.values()) or 1)
    length, rows = choice.spec.train.sequence_length, chosen["micro_batch"]
    varied = choice.accelerated and 0 < mean <= length / 2 and choice.spec.train.micro_batch is None
    grouped = chosen["batching"] == "grouped" and chosen["pipeline"] == 1 and rows > 1
    return (0, rows * length // 2) if varied and grouped else (0,)


def optimizer_offloads(choice: DomainContext) -> Values:
    """Adds host memory if a rank's share of the states would fill half of a GPU.

    DeepSpeed on one data rank always offloads, since ZeRO does nothing else there. FSDP2 offloads
    optimizer states and parameters together, so that the specification's values for parameters
    hold for both.
    """
    chosen, parameters = choice.chosen, choice.spec.space.offload_parameters
    if chosen["engine"] == "torch" and parameters is not None:
        return parameters
    if chosen["engine"] == "deepspeed" and chosen["data"] == 1 and chosen["zero_stage"] > 0:
        return ("cpu",)
    shards = chosen["data"] * chosen["tensor"] * chosen["pipeline"]
    able = choice.accelerated and not choice.cluster.lack("offload")
    return ("none", "cpu") if able and _is_tight(choice, shards) else ("none",)


def parameter_offloads(choice: DomainContext) -> Values:
    """Returns the optimizer's value for FSDP2; adds host memory for ZeRO-3 with offload."""
    chosen = choice.chosen
    if chosen["engine"] == "torch":
        return (chosen["offload_optimizer"],)
    zero_3 = choice.accelerated and chosen["zero_stage"] == 3
    return ("none", "cpu") if zero_3 and chosen["offload_optimizer"] != "none" else ("none",)


def attentions(choice: DomainContext) -> Values:
    """Returns the available implementations; on GPUs without eager if there is a fused one."""
    available = tuple(name for name in choice.model.attentions if not choice.cluster.lack(name))
    if not choice.accelerated:
        return tuple(name for name in available if not name.startswith("flash"))
    if choice.spec.train.precision == "fp32":
        available = tuple(name for name in available if not name.startswith("flash"))
    return tuple(name for name in available if name != "eager") or available


def compiles(choice: DomainContext) -> Values:
    """Returns both values on GPUs, if the model and the machines can compile."""
    supported = choice.accelerated and not choice.model.bypasses_hooks
    return (False, True) if supported and not choice.cluster.lack("compile") else (False,)


def losses(choice: DomainContext) -> Values:
    """Adds chunked where logits take a quarter or more of the bytes that blocks save.

    A logit takes 10 bytes in 16 bits: itself, in fp32, and its gradient. A block saves 34 for each
    token and hidden unit, if nothing is recomputed and no attention matrix stored.

    Source:
        Korthikanti et al. 2022, arXiv:2205.05198, section 4.1.
    """
    model, words = choice.model, choice.model.vocab_size or 0
    if model.loss_refusal or words < _WORDS or choice.chosen["tensor"] > 1:
        return ("whole",)
    saved = 34 * model.blocks * model.head_parameters / words
    return ("whole", "chunked") if 10 * words >= saved / 4 else ("whole",)


def vocab_multiples(choice: DomainContext) -> Values:
    """Adds 64 on GPUs, whose tensor cores load 16 bytes, unless 8 divides the vocabulary.

    Source:
        NVIDIA, "Matrix Multiplication Background User's Guide", section 2.2.
    """
    words, split = choice.model.vocab_size or 0, choice.chosen["tensor"] > 1
    aligned = words % 8 == 0 or choice.model.loss_refusal is not None
    return (1,) if aligned or split or not choice.accelerated else (1, 64)


def tiles(choice: DomainContext) -> Values:
    """Adds 8 on GPUs where the MLP of one block and sample takes a 16th of the memory or more.

    An MLP saves 19 bytes for each token and hidden unit.

    Source:
        Korthikanti et al. 2022, arXiv:2205.05198, section 4.1.
    """
    model, words = choice.model, choice.model.vocab_size or 0
    if not choice.accelerated or model.tile_refusal or not words or choice.chosen["compile"]:
        return (1,)
    saved = 19 * choice.spec.train.sequence_length * model.head_parameters / words
    wide = saved >= _limit_bytes(choice) / 16 and choice.chosen["tensor"] == 1
    return (1, 8) if wide else (1,)


def implementations(optimizer: str) -> tuple[Optimizer, ...]:
    """Returns the values of the knob for a value of `train.optimizer`, the default first."""
    if optimizer == "adamw":
        return _ADAMW
    return ("custom",) if ":" in optimizer else (cast("Optimizer", optimizer),)


def optimizers(choice: DomainContext) -> Values:
    """Returns the default implementation of the specified optimizer."""
    return implementations(choice.spec.train.optimizer)[:1]


def _is_tight(choice: DomainContext, ranks: int) -> bool:
    return _state_bytes(choice) / ranks > _limit_bytes(choice) / 2


def _state_bytes(choice: DomainContext) -> int:
    model = choice.model
    frozen = model.parameters - model.trainable_parameters
    pure = "fp32" not in (choice.spec.space.states or ("fp32",))
    return (_STATE_BYTES * model.trainable_parameters + 4 * frozen) // (2 if pure else 1)


def _limit_bytes(choice: DomainContext) -> int:
    return choice.cluster.memory_limit_bytes or _SMALL_DEVICE_BYTES
