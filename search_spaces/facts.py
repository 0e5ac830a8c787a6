"""What rules need to know about a model and about a cluster, as plain values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from search_spaces.plan import Attention
from search_spaces.spec.schema import SweepSpec

Room = Callable[[str], tuple[int, int | None]]  # ranks there is room for: on all nodes, on one


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """What tensor parallelism can split in a model.

    `refusal` says why it splits nothing, None if it does. `divisors` are the counts that a
    degree must divide, each with what it counts ("attention heads", 32). The other refusals are
    those of what needs more than that: the sequence, DeepSpeed's AutoTP.
    """

    refusal: str | None = None
    divisors: tuple[tuple[str, int], ...] = ()
    sequence_refusal: str | None = None
    autotp_refusal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What is known of a model before it is built.

    `blocks` is the number of repeated layers that checkpointing, sharding and pipelining
    divide, `block_parameters` what each of them holds; `embedding_parameters` is what lies
    before the first block and `head_parameters` what lies behind the last (tied weights count
    in both). `trainable` is the number of parameters that training changes. `packing` tells
    whether its attention keeps packed samples apart by their position ids; `vocab_size` is
    None for models that bring their own batches. A refusal says why the model cannot be
    treated so, None if it can.
    """

    name: str
    architecture: str
    parameters: int
    blocks: int
    attentions: tuple[Attention, ...]
    packing: bool
    max_sequence_length: int | None
    vocab_size: int | None = None
    trainable: int | None = None  # None: all
    active: int | None = None  # that one token meets, where experts share the work; None: all
    block_parameters: tuple[int, ...] = ()
    embedding_parameters: int = 0
    head_parameters: int = 0
    tensor: TensorFacts = TensorFacts()
    pipeline_refusal: str | None = None
    compile_refusal: str | None = None

    @property
    def trainable_parameters(self) -> int:
        """Parameters that have gradients and optimizer states."""
        return self.parameters if self.trainable is None else self.trainable


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorFacts:
    """What is known of the nodes of one kind; see `ClusterFacts`."""

    name: str
    slots: int
    node_slots: int | None = None
    memory_limit_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """What is known of the machines before a trial runs.

    `slots` is how many ranks fit at once, `node_slots` how many of them on one node, None where
    nobody knows; `memory_limit_bytes` is per rank, None where nothing limits it but the machine.
    `lacks` names what a worker's machine cannot do, each with the reason and the remedy in one
    sentence (see `workers.probe.doctor` for the names). Where plans say on which kind of node they
    run, `accelerators` are those kinds; the other numbers are then the most (of memory the least)
    of any.
    """

    device: str  # "cpu" or "cuda"
    slots: int
    memory_limit_bytes: int | None
    node_slots: int | None = None
    lacks: tuple[tuple[str, str], ...] = ()
    accelerators: tuple[AcceleratorFacts, ...] = ()

    def lack(self, feature: str) -> str | None:
        """Why the machines cannot do it, None if they can."""
        return dict(self.lacks).get(feature)

    def of(self, accelerator: str) -> Self:
        """The nodes of one kind alone; all of them if there are no such."""
        for one in self.accelerators:
            if one.name == accelerator:
                return replace(
                    self,
                    slots=one.slots,
                    node_slots=one.node_slots,
                    memory_limit_bytes=one.memory_limit_bytes,
                )
        return self

    def by_accelerator(self, accelerators: tuple[AcceleratorFacts, ...]) -> Self:
        """The same machines told apart by kind; the same again where there are none to tell."""
        if not accelerators:
            return self
        nodes = [one.node_slots for one in accelerators if one.node_slots is not None]
        limits = [one.memory_limit_bytes for one in accelerators if one.memory_limit_bytes]
        return replace(
            self,
            slots=max(one.slots for one in accelerators),
            node_slots=max(nodes, default=None),
            memory_limit_bytes=min(limits, default=None),
            accelerators=accelerators,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeVersion:
    """The commit that a folder stands at.

    `branch` is empty for a detached head, `remote` for a repository without one; `modified` says
    whether tracked files differ from the commit.
    """

    commit: str
    branch: str
    remote: str  # a URL without user, password and query
    modified: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthBin:
    """Samples of `shortest` to `longest` tokens, both included."""

    shortest: int
    longest: int
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataProfile:
    """The samples that a sweep trains on.

    The digest changes with any token and any length, so it changes with the files, the tokenizer,
    the sequence length and, for generated samples, the seed.
    """

    name: str
    digest: str
    files: tuple[str, ...]  # absolute paths; none: the samples are generated
    tokenizer: str  # empty: trained on the files, or none is needed
    samples: int
    tokens: int
    histogram: tuple[LengthBin, ...]  # by length, without empty bins


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """User, code and data of a sweep, as a driver knew them when it began.

    `is_job` says whether a scheduler ran it: a Ray job or Slurm. `context` are the tags of
    `MLFLOW_RUN_CONTEXT`, which go before all others. `data` is None for models that make their
    own batches.
    """

    at: float  # seconds since the epoch
    user: str
    is_job: bool
    code: CodeVersion | None
    context: tuple[tuple[str, str], ...] = ()
    data: DataProfile | None = None


def provenance_at(provenances: Sequence[Provenance], moment: float) -> Provenance | None:
    """The provenance of the driver that was at work at a moment, in seconds since the epoch.

    None before the first of them began.
    """
    begun = [provenance for provenance in provenances if provenance.at <= moment]
    return max(begun, key=lambda provenance: provenance.at, default=None)


def split_by_accelerator(
    cluster: ClusterFacts, spec: SweepSpec, room: Room | None = None
) -> ClusterFacts:
    """The cluster with each kind of nodes that the specification names.

    Args:
        cluster: What is known of all nodes together.
        spec: Names the kinds, and what one rank may hold on each.
        room: How many ranks each kind has room for; as many as all nodes together if None.
    """
    kinds = []
    for name in spec.cluster.accelerators:
        slots, node_slots = room(name) if room else (cluster.slots, cluster.node_slots)
        kinds.append(
            AcceleratorFacts(
                name=name,
                slots=slots,
                node_slots=node_slots,
                memory_limit_bytes=spec.on(name).memory_limit_bytes,
            )
        )
    return cluster.by_accelerator(tuple(kinds))
