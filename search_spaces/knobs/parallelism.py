"""Knobs of a plan. Ranks: engine, degrees of parallelism, sharding."""

from __future__ import annotations

from search_spaces.knobs import search_defaults
from search_spaces.knobs.knob import ZERO, Knob, is_sharded

PARALLELISM = (
    Knob(
        name="engine",
        trades="DDP and FSDP2 combine with tensor and pipeline parallelism; DeepSpeed's ZeRO can"
        " also offload optimizer states alone, on a single rank, and to NVMe",
        does="builds Plimsoll's own training loop on torch, or wraps the model in DeepSpeed's"
        " engine",
        default=search_defaults.engines,
    ),
    Knob(
        name="tensor",
        trades="less memory for weights and activations, and more ranks than the global batch has"
        " samples, against all-reduces in each block, forward and backward",
        does="splits the projections of each block over neighbouring ranks: `torch` uses the plan"
        " of `model.tensor_plan`, transformers or Plimsoll, and also splits embedding and head"
        " if their rows divide evenly; `deepspeed` uses AutoTP, for architectures that are"
        " verified to train with it",
        default=search_defaults.tensor_degrees,
        set_in="group",
    ),
    Knob(
        name="sequence_parallel",
        trades="less memory for activations between the split projections, at the same traffic:"
        " all-gather and reduce-scatter instead of all-reduce",
        does="splits the sequence over the tensor ranks where blocks process each token"
        " independently; pads rows until the sequence divides evenly",
        engines="torch",
        default=search_defaults.sequence_splits,
        is_active=lambda chosen: chosen["tensor"] > 1,
        active="with tensor above 1",
        depends_on=("engine", "tensor"),
    ),
    Knob(
        name="pipeline",
        trades="less memory for weights and little traffic (only hidden states), against ranks that"
        " wait for each other",
        does="cuts the stack of blocks into stages with balanced parameter counts (embedding and"
        " head included), and keeps the rank's own stages",
        engines="torch",
        default=search_defaults.pipeline_degrees,
        depends_on=("engine", "tensor"),
        set_in="group",
    ),
    Knob(
        name="pipeline_schedule",
        trades="gpipe holds the activations of all micro-batches, 1f1b of at most one per stage;"
        " interleaved waits less and communicates more; interleaved_zero_bubble, zbv and"
        " dualpipev wait least, hold as much on every rank as 1f1b on the first, and allow"
        " neither recomputation nor sharding",
        does="runs the micro-batches in that order with `torch.distributed.pipelining`, all padded"
        " to one shape; all but gpipe and 1f1b put two stages on each rank, zbv and dualpipev"
        " the first and the last one on the first rank; the last three compute the gradients of"
        " weights apart from those of hidden states, in the time that ranks would wait",
        engines="torch",
        default=search_defaults.pipeline_schedules,
        is_active=lambda chosen: chosen["pipeline"] > 1,
        active="with pipeline above 1",
        depends_on=("pipeline",),
    ),
    Knob(
        name="data",
        trades="ranks that share the global batch against ranks that share the model",
        does="takes the data rank's share of every step's samples, and averages gradients over the"
        " data ranks",
        default=search_defaults.data_degrees,
        depends_on=("tensor", "pipeline"),
        set_in="group",
    ),
    Knob(
        name="zero_stage",
        trades="memory for model states against traffic: 0 replicates everything, 1 shards the"
        " optimizer states, 2 also the gradients, 3 also the weights",
        does="`torch`: 0 is DDP (no wrapper with one data rank), 2 is FSDP2 that gathers weights"
        " once a step and frees them in its last backward pass, 3 is FSDP2 that gathers them in"
        " each forward and backward pass; `deepspeed`: the ZeRO stage",
        default=search_defaults.zero_stages,
        depends_on=("engine", "data"),
    ),
    Knob(
        name="replicas",
        trades="less traffic between groups of ranks (nodes) against memory: states are sharded"
        " only within a group (hybrid sharding)",
        does="shards with FSDP2 over a replicate x shard mesh; reduces gradients over the replicas"
        " once per step",
        engines="torch",
        default=search_defaults.replica_counts,
        is_active=lambda chosen: chosen["engine"] == "torch" and is_sharded(chosen),
        active="with engine torch and zero_stage 2 or 3",
        depends_on=(*ZERO, "data", "tensor", "pipeline"),
    ),
)
