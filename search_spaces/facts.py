"""What rules need to know about a model and about a cluster, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from search_spaces.plan import Attention


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What is known of a model before it is built.

    `blocks` is the number of repeated layers that checkpointing and sharding wrap;
    `packing` tells whether its attention keeps packed samples apart by their position ids;
    `vocab_size` is None for models that bring their own batches.
    """

    name: str
    architecture: str
    parameters: int
    blocks: int
    attentions: tuple[Attention, ...]
    packing: bool
    max_sequence_length: int | None
    vocab_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """What is known of the machines before a trial runs.

    `slots` is how many ranks fit at once; `memory_limit_bytes` is per rank, None where
    nothing limits it but the machine.
    """

    device: str  # "cpu" or "cuda"
    slots: int
    memory_limit_bytes: int | None
