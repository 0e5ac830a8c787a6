"""Documentation of each knob: its trade-off, and how the worker applies it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobDoc:
    """Cells of a knob's row in the reference that cannot be derived from code.

    Attributes:
        trades: What the knob gains and what it costs.
        engines: Engines that have it.
        does: What the worker does with it.
        is_active: Condition under which it changes anything; empty if it always does.
        lossy: Values that change the numerics; empty if none does.
    """

    trades: str
    engines: str = "both"
    does: str
    is_active: str = ""
    lossy: str = ""


KNOB_DOCS: Mapping[str, KnobDoc] = {
    "accelerator": KnobDoc(
        trades="speed and memory of a GPU against its price and the number of such GPUs",
        does="places the ranks on nodes of that kind (Ray's label `ray.io/accelerator-type`), which"
        " `cluster.accelerators` names and describes; each kind has its own forecasts, memory"
        " limit and price",
    ),
    "engine": KnobDoc(
        trades="DDP and FSDP2 combine with tensor and pipeline parallelism; DeepSpeed's ZeRO can"
        " also offload optimizer states alone, on a single rank, and to NVMe",
        does="builds Plimsoll's own training loop on torch, or wraps the model in DeepSpeed's"
        " engine",
    ),
    "tensor": KnobDoc(
        trades="less memory for weights and activations, and more ranks than the global batch has"
        " samples, against all-reduces in each block, forward and backward",
        does="splits the projections of each block over neighbouring ranks: `torch` uses the plan"
        " of `model.tensor_plan`, transformers or Plimsoll, and also splits embedding and head if"
        " their rows divide evenly; `deepspeed` uses AutoTP, for architectures that are verified"
        " to train with it",
    ),
    "sequence_parallel": KnobDoc(
        trades="less memory for activations between the split projections, at the same traffic:"
        " all-gather and reduce-scatter instead of all-reduce",
        engines="torch",
        is_active="with tensor above 1",
        does="splits the sequence over the tensor ranks where blocks process each token"
        " independently; pads rows until the sequence divides evenly",
    ),
    "pipeline": KnobDoc(
        trades="less memory for weights and little traffic (only hidden states), against ranks that"
        " wait for each other",
        engines="torch",
        does="cuts the stack of blocks into stages with balanced parameter counts (embedding and"
        " head included), and keeps the rank's own stages",
    ),
    "pipeline_schedule": KnobDoc(
        trades="gpipe holds the activations of all micro-batches, 1f1b of at most one per stage;"
        " interleaved waits less and communicates more",
        engines="torch",
        is_active="with pipeline above 1",
        does="runs the micro-batches in that order with `torch.distributed.pipelining`, all padded"
        " to one shape; interleaved puts two stages on each rank",
    ),
    "data": KnobDoc(
        trades="ranks that share the global batch against ranks that share the model",
        does="takes the data rank's share of every step's samples, and averages gradients over"
        " the data ranks",
    ),
    "zero_stage": KnobDoc(
        trades="memory for model states against traffic: 0 replicates everything, 1 shards the"
        " optimizer states, 2 also the gradients, 3 also the weights",
        does="`torch`: 0 is DDP (no wrapper with one data rank), 2 is FSDP2 that keeps weights"
        " gathered until backward, 3 is FSDP2 that gathers them again; `deepspeed`: the ZeRO"
        " stage",
    ),
    "replicas": KnobDoc(
        trades="less traffic between groups of ranks (nodes) against memory: states are sharded"
        " only within a group (hybrid sharding)",
        engines="torch",
        is_active="with engine torch and zero_stage 2 or 3",
        does="shards with FSDP2 over a replicate x shard mesh; reduces gradients over the replicas"
        " once per step",
    ),
    "micro_batch": KnobDoc(
        trades="better device utilization against the activations of more samples at once",
        does="feeds that many samples to each forward pass, and accumulates gradients over the"
        " step",
    ),
    "batching": KnobDoc(
        trades="less padding against batches of uneven shapes: grouped batches samples of similar"
        " length, packed concatenates samples",
        does="arranges each step's samples in micro-batches; every choice trains on the same"
        " samples",
    ),
    "checkpoint_ratio": KnobDoc(
        trades="less memory for activations against computing those blocks twice",
        does="recomputes that share of the blocks in backward, spread evenly over the stack",
    ),
    "checkpoint_mode": KnobDoc(
        trades="selective saves less memory and costs less time: it keeps the expensive outputs"
        " (matmuls, and attention computed by one kernel) and recomputes the rest",
        is_active="with checkpoint_ratio above 0",
        does="wraps the recomputed blocks in torch's selective activation checkpointing",
    ),
    "checkpoint_offload": KnobDoc(
        trades="less device memory for the saved tensors of recomputed blocks, against copies to"
        " the host and back",
        is_active="with checkpoint_ratio above 0",
        does="keeps the inputs of recomputed blocks, and the outputs that selective saves, in host"
        " memory until backward needs them",
    ),
    "offload_optimizer": KnobDoc(
        trades="less device memory for optimizer states, against updates on the CPU or reads from"
        " NVMe",
        is_active="if zero_stage shards states (torch: 2 or 3, deepspeed: 1 to 3)",
        does="`torch`: FSDP2's CPU offload policy, which moves weights too; `deepspeed`:"
        " ZeRO-Offload with DeepSpeed's CPU Adam, and swapping to `cluster.nvme_folder`",
    ),
    "offload_parameters": KnobDoc(
        trades="less device memory for weights, against copies before each use",
        is_active="if zero_stage shards states (torch: 2 or 3, deepspeed: 1 to 3)",
        does="`torch`: the same policy as for the optimizer; `deepspeed`: ZeRO-3 fetches weights"
        " from host memory or NVMe",
    ),
    "pin_memory": KnobDoc(
        trades="faster copies, but host memory that cannot be swapped out",
        is_active="if anything is offloaded",
        does="keeps offloaded state in page-locked memory",
    ),
    "aio_block_kib": KnobDoc(
        trades="larger requests against more requests in parallel",
        engines="deepspeed",
        is_active="if anything is on NVMe",
        does="sets `aio.block_size`",
    ),
    "aio_queue_depth": KnobDoc(
        trades="a busy drive against memory for requests in flight",
        engines="deepspeed",
        is_active="if anything is on NVMe",
        does="sets `aio.queue_depth`",
    ),
    "aio_threads": KnobDoc(
        trades="drive bandwidth against CPU cores",
        engines="deepspeed",
        is_active="if anything is on NVMe",
        does="sets DeepSpeed's aio threads per rank",
    ),
    "attention": KnobDoc(
        trades="speed and memory of the same attention: eager stores the whole attention matrix,"
        " flash never does, sdpa uses the kernel that torch picks",
        does="builds a transformers model with that implementation; a model from a user's function"
        " has its own",
    ),
    "precision": KnobDoc(
        trades="speed and memory for activations against accuracy; master weights are always fp32",
        lossy="all but `train.precision`",
        does="`torch`: FSDP2's mixed-precision policy, or autocast without FSDP2, with dynamic loss"
        " scaling for fp16; `deepspeed`: its bf16 or fp16 mode",
    ),
    "compile": KnobDoc(
        trades="faster steps against compile time, which the trial reports separately",
        does="compiles each block on its own, recomputation included: first for the first width,"
        " then once more for all widths",
    ),
    "optimizer": KnobDoc(
        trades="adamw_fused updates in few kernels, adamw_foreach in more and with temporaries;"
        " adamw_8bit and adafactor need less memory for states, but approximate the moments",
        lossy="adamw_8bit, adafactor",
        does="creates that optimizer for the trained weights; if states are offloaded, DeepSpeed's"
        " own CPU Adam replaces adamw_fused",
    ),
    "bucket_mib": KnobDoc(
        trades="fewer, larger reductions against an earlier start and smaller buffers",
        is_active="with DDP, or with engine deepspeed and zero_stage above 0",
        does="`torch`: sets `bucket_cap_mb` of DDP; `deepspeed`: sets `reduce_bucket_size` and"
        " `allgather_bucket_size`, limited to the size of the model",
    ),
    "gradient_as_bucket_view": KnobDoc(
        trades="true avoids a copy of the gradients: they live in the reduction buckets",
        engines="torch",
        is_active="with DDP",
        does="sets DDP's argument of the same name",
    ),
    "compression": KnobDoc(
        trades="less gradient traffic against accuracy; powersgd also needs memory for its error"
        " feedback",
        engines="torch",
        is_active="with DDP",
        lossy="fp16, bf16, powersgd",
        does="registers DDP's communication hook",
    ),
    "overlap": KnobDoc(
        trades="reductions that overlap with backward, against a second buffer",
        engines="deepspeed",
        is_active="with engine deepspeed and zero_stage above 0",
        does="sets `overlap_comm`",
    ),
    "contiguous_gradients": KnobDoc(
        trades="no fragmentation, against one more buffer and copy",
        engines="deepspeed",
        is_active="with engine deepspeed and zero_stage above 0",
        does="sets `contiguous_gradients`",
    ),
    "prefetch_mib": KnobDoc(
        trades="weights that arrive in time, against memory for prefetched weights",
        engines="deepspeed",
        is_active="with engine deepspeed and zero_stage 3",
        does="sets `stage3_prefetch_bucket_size`, limited to the size of the model",
    ),
    "loader_workers": KnobDoc(
        trades="batches prepared in parallel with training, against CPU cores and host memory"
        " (counted neither in the peak nor against the limit)",
        does="forks that many processes per rank to make batches, including those of a user's batch"
        " maker; batches pass through /dev/shm, which needs room for them; 0: the rank makes them"
        " itself",
    ),
    "loader_pin_memory": KnobDoc(
        trades="faster copies of batches, but host memory that cannot be swapped out",
        does="page-locks batches before they are copied to the GPU",
    ),
    "allocator": KnobDoc(
        trades="less fragmentation and less retained memory, against more work in the allocator",
        does="sets environment variables that are read when a process starts: a plan with another"
        " value gets a new worker group",
    ),
}
