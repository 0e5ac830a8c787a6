"""Knobs of a plan. Ranks: engine, degrees of parallelism, sharding."""

from search_spaces.knobs import search_defaults
from search_spaces.knobs.knob import ZERO, Knob, has_whole_layers, is_sharded

PARALLELISM = (
    Knob(
        name="engine",
        trades="DDP and FSDP2 combine with tensor and pipeline parallelism; ZeRO offloads"
        " optimizer states alone, on one rank, and to NVMe",
        does="Plimsoll's loop on torch, or DeepSpeed",
        default=search_defaults.engines,
    ),
    Knob(
        name="tensor",
        trades="less memory, and more ranks than samples, against all-reduces in each block",
        does="splits each block's projections over neighbouring ranks by `model.tensor_plan`,"
        " transformers' plan or Plimsoll's, with embedding and head if they divide",
        engines="torch",
        default=search_defaults.tensor_degrees,
        depends_on=("engine",),
    ),
    Knob(
        name="sequence_parallel",
        trades="less memory for activations between the projections, at the same traffic",
        does="splits padded rows over the tensor ranks where blocks process each token alone",
        engines="torch",
        default=search_defaults.sequence_splits,
        is_active=lambda chosen: chosen["tensor"] > 1,
        active="with tensor above 1",
        depends_on=("tensor",),
    ),
    Knob(
        name="pipeline",
        trades="less memory for weights and little traffic, against ranks that wait for each other",
        does="cuts the blocks into stages of balanced parameters",
        engines="torch",
        default=search_defaults.pipeline_degrees,
        depends_on=("engine", "tensor"),
    ),
    Knob(
        name="pipeline_schedule",
        trades="gpipe holds the activations of all micro-batches, 1f1b of one per stage;"
        " interleaved waits less and communicates more; interleaved_zero_bubble, zbv and dualpipev"
        " wait least, but allow neither recomputation nor sharding",
        does="`torch.distributed.pipelining`, with micro-batches of one shape; all but gpipe and"
        " 1f1b put two stages on each rank",
        engines="torch",
        default=search_defaults.pipeline_schedules,
        is_active=lambda chosen: chosen["pipeline"] > 1,
        active="with pipeline above 1",
        depends_on=("pipeline",),
    ),
    Knob(
        name="data",
        trades="ranks that share the global batch against ranks that share the model",
        does="averages gradients",
        default=search_defaults.data_degrees,
        depends_on=("tensor", "pipeline"),
    ),
    Knob(
        name="zero_stage",
        trades="memory against traffic: 0 replicates all, 1 shards optimizer states, 2 gradients"
        " too, 3 weights too",
        does="`torch`: 0 is DDP, 2 and 3 are FSDP2 that gathers weights once a step or in each"
        " pass; `deepspeed`: the ZeRO stage",
        default=search_defaults.zero_stages,
        depends_on=("engine", "data"),
    ),
    Knob(
        name="replicas",
        trades="less traffic between nodes against memory: states are sharded only within a group"
        " (hybrid sharding)",
        does="FSDP2 over a replicate x shard mesh",
        engines="torch",
        default=search_defaults.replica_counts,
        is_active=lambda chosen: chosen["engine"] == "torch" and is_sharded(chosen),
        active="with engine torch and zero_stage 2 or 3",
        depends_on=(*ZERO, "data", "tensor", "pipeline"),
    ),
    Knob(
        name="experts",
        trades="smaller gathers of a mixture of experts, against tokens that go to their experts"
        " and back in each layer",
        does="transformers' all-to-all (`ep_dispatch_experts`), FSDP2 over ranks with the same"
        " experts",
        engines="torch",
        default=search_defaults.expert_degrees,
        is_active=lambda chosen: has_whole_layers(chosen) and is_sharded(chosen),
        active="with engine torch, zero_stage 2 or 3, tensor 1 and pipeline 1",
        depends_on=(*ZERO, "data", "tensor", "pipeline", "replicas"),
        label="{} expert ranks",
    ),
    Knob(
        name="context",
        trades="longer rows, or fewer samples than ranks, against all-to-alls around attention",
        does="divides the tokens of rows, and in attention the heads (Ulysses); keys and values"
        " repeat where there are fewer",
        engines="torch",
        default=search_defaults.context_degrees,
        is_active=lambda chosen: has_whole_layers(chosen) and chosen["data"] > 1,
        active="with data above 1, tensor 1 and pipeline 1",
        depends_on=("engine", "data", "tensor", "pipeline"),
        label="{} context ranks",
    ),
)
