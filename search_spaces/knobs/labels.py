"""What each knob trades and what the worker does with it, in words: for `knobs_reference`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobLabels:
    """The cells of a knob's row that no code tells.

    `is_active` says when the knob changes anything, empty if it always does; `lossy` which values
    change the numerics, empty if none does.
    """

    trades: str
    engines: str = "both"
    does: str
    is_active: str = ""
    lossy: str = ""


WORDS: Mapping[str, KnobLabels] = {
    "accelerator": KnobLabels(
        trades="speed and memory of a GPU against its price, and how many of them there are",
        does="places the ranks on nodes of that kind (Ray's label `ray.io/accelerator-type`), which"
        " `cluster.accelerators` names and describes: each kind has its own forecasts, memory"
        " limit and price",
    ),
    "engine": KnobLabels(
        trades="who trains: DDP and FSDP2, which go together with tensor and pipeline ranks, or"
        " DeepSpeed's ZeRO, which also offloads optimizer states alone, on one rank, and to NVMe",
        does="builds Plimsoll's own training loop over torch, or DeepSpeed's engine around the"
        " model",
    ),
    "tensor": KnobLabels(
        trades="memory of weights and activations, and room for more ranks than the global batch"
        " has samples, against all-reduces in each block, forward and backward",
        does="splits the projections of each block over neighbouring ranks: `torch` by the plan in"
        " `model.tensor_plan`, transformers or Plimsoll, and embedding and head where their rows"
        " divide; `deepspeed` by AutoTP, for architectures that were shown to train so",
    ),
    "sequence_parallel": KnobLabels(
        trades="memory of activations between the split projections, for the same traffic:"
        " all-gather and reduce-scatter in place of all-reduce",
        engines="torch",
        is_active="with tensor above 1",
        does="splits the sequence over the tensor ranks where blocks treat each token by itself;"
        " rows are filled up until it divides",
    ),
    "pipeline": KnobLabels(
        trades="memory of weights, for the hidden states as only traffic, against ranks that"
        " wait for each other",
        engines="torch",
        does="cuts the stack of blocks into stages of balanced parameters, embedding and head"
        " counted, and keeps its own",
    ),
    "pipeline_schedule": KnobLabels(
        trades="gpipe holds all micro-batches' activations, 1f1b at most one for each stage,"
        " interleaved waits less and talks more",
        engines="torch",
        is_active="with pipeline above 1",
        does="runs the micro-batches in that order, by `torch.distributed.pipelining`, all filled"
        " up to one shape; interleaved puts two stages on a rank",
    ),
    "data": KnobLabels(
        trades="ranks that share the global batch against ranks that share the model",
        does="takes this data rank's share of every step's samples, and averages gradients over"
        " the data ranks",
    ),
    "zero_stage": KnobLabels(
        trades="memory of states against traffic: 0 keeps all on each rank, 1 splits optimizer"
        " states, 2 gradients too, 3 weights too",
        does="`torch`: 0 is DDP (nothing on one data rank), 2 is FSDP2 that keeps weights"
        " gathered until backward, 3 is FSDP2 that gathers them again; `deepspeed`: the stage of"
        " ZeRO",
    ),
    "replicas": KnobLabels(
        trades="traffic between groups of ranks (nodes) against memory: states are split within"
        " a group only (hybrid shard)",
        engines="torch",
        is_active="with zero_stage 2 or 3 of torch",
        does="lets FSDP2 shard over a mesh of replicate x shard; gradients are reduced over the"
        " replicas once a step",
    ),
    "micro_batch": KnobLabels(
        trades="busier devices against activations of more samples at once",
        does="feeds so many samples to each forward pass, and accumulates over the rest",
    ),
    "batching": KnobLabels(
        trades="less padding against batches of uneven shapes: grouped puts samples of like"
        " length together, packed lays them end to end",
        does="lays each step's samples into micro-batches; every way trains on the same samples",
    ),
    "checkpoint_ratio": KnobLabels(
        trades="activations of blocks against computing them twice",
        does="recomputes that share of the blocks in backward, spread evenly over the stack",
    ),
    "checkpoint_mode": KnobLabels(
        trades="selective keeps what is costly to compute, matmuls and attention where one kernel"
        " computes it, and recomputes the rest: less memory saved, less time lost",
        is_active="with checkpoint_ratio above 0",
        does="wraps the blocks that are recomputed with torch's selective checkpointing",
    ),
    "checkpoint_offload": KnobLabels(
        trades="device memory of what recomputed blocks keep against copies to the host and back",
        is_active="with checkpoint_ratio above 0",
        does="keeps the inputs of recomputed blocks, and what selective keeps, in host memory until"
        " backward wants them",
    ),
    "offload_optimizer": KnobLabels(
        trades="device memory of optimizer states against updates on the CPU, or reads from NVMe",
        is_active="where zero_stage splits states (2 or 3 of torch, 1 to 3 of deepspeed)",
        does="`torch`: FSDP2's CPU offload policy, which moves weights too; `deepspeed`:"
        " ZeRO-Offload with DeepSpeed's CPU Adam, and swapping to `cluster.nvme_folder`",
    ),
    "offload_parameters": KnobLabels(
        trades="device memory of weights against copies before each use",
        is_active="where zero_stage splits states (2 or 3 of torch, 1 to 3 of deepspeed)",
        does="`torch`: the same policy as for the optimizer; `deepspeed`: ZeRO-3 fetches weights"
        " from host memory or NVMe",
    ),
    "pin_memory": KnobLabels(
        trades="faster copies against host memory that cannot be swapped out",
        is_active="where something is offloaded",
        does="keeps what is offloaded in page-locked memory",
    ),
    "aio_block_kib": KnobLabels(
        trades="larger requests against requests in parallel",
        engines="deepspeed",
        is_active="where something lies on NVMe",
        does="sets `aio.block_size`",
    ),
    "aio_queue_depth": KnobLabels(
        trades="a drive that is kept busy against memory of requests under way",
        engines="deepspeed",
        is_active="where something lies on NVMe",
        does="sets `aio.queue_depth`",
    ),
    "aio_threads": KnobLabels(
        trades="bandwidth of the drive against CPU cores",
        engines="deepspeed",
        is_active="where something lies on NVMe",
        does="sets DeepSpeed's aio threads of each rank",
    ),
    "attention": KnobLabels(
        trades="speed and memory of one and the same attention: eager holds its whole matrix,"
        " flash never does, sdpa takes the kernel that torch chooses",
        does="builds a model of transformers with that implementation; a function of the user's"
        " has its own",
    ),
    "precision": KnobLabels(
        trades="speed and memory of activations against digits; master weights are fp32 in each",
        lossy="all but `train.precision`",
        does="`torch`: FSDP2's mixed-precision policy, autocast without it, dynamic loss scaling"
        " for fp16; `deepspeed`: its bf16 or fp16 mode",
    ),
    "compile": KnobLabels(
        trades="faster steps against seconds of compiling, which the trial reports apart",
        does="compiles each block by itself, recomputation inside; for the first width that it"
        " meets, then once more for any width",
    ),
    "optimizer": KnobLabels(
        trades="adamw_fused does an update in few kernels, adamw_foreach in more, with"
        " temporaries; adamw_8bit and adafactor: memory of states against exact moments",
        lossy="adamw_8bit, adafactor",
        does="makes that optimizer of the weights that are trained; DeepSpeed's own CPU Adam takes"
        " the place of adamw_fused where states are offloaded",
    ),
    "bucket_mib": KnobLabels(
        trades="fewer, larger reductions against an earlier start and smaller buffers",
        is_active="with DDP, and with zero_stage above 0 of deepspeed",
        does="`torch`: sets `bucket_cap_mb` of DDP; `deepspeed`: sets `reduce_bucket_size` and"
        " `allgather_bucket_size`, at most the model",
    ),
    "gradient_as_bucket_view": KnobLabels(
        trades="a copy of the gradients: on, they lie in the buckets that are reduced, off,"
        " beside them too",
        engines="torch",
        is_active="with DDP",
        does="sets DDP's argument of that name",
    ),
    "compression": KnobLabels(
        trades="traffic of gradients against their digits; powersgd also takes memory, for what"
        " it left out of them",
        engines="torch",
        is_active="with DDP",
        lossy="fp16, bf16, powersgd",
        does="registers DDP's communication hook",
    ),
    "overlap": KnobLabels(
        trades="reduction during backward against a second buffer",
        engines="deepspeed",
        is_active="with zero_stage above 0 of deepspeed",
        does="sets `overlap_comm`",
    ),
    "contiguous_gradients": KnobLabels(
        trades="no fragmentation against one more buffer and copy",
        engines="deepspeed",
        is_active="with zero_stage above 0 of deepspeed",
        does="sets `contiguous_gradients`",
    ),
    "prefetch_mib": KnobLabels(
        trades="weights that are there in time against memory of those fetched ahead",
        engines="deepspeed",
        is_active="with zero_stage 3 of deepspeed",
        does="sets `stage3_prefetch_bucket_size`, at most the model",
    ),
    "loader_workers": KnobLabels(
        trades="batches prepared beside the training against CPU cores and host memory, which is"
        " not counted: neither in the peak nor against the limit",
        does="forks so many processes for each rank, in which batches, also those of a user's batch"
        " maker, are made; they come through /dev/shm, which must have room; 0: in the rank itself",
    ),
    "loader_pin_memory": KnobLabels(
        trades="faster copies of batches against host memory that cannot be swapped out",
        does="page-locks batches before they are copied to the GPU",
    ),
    "allocator": KnobLabels(
        trades="fragmentation, and memory that is not given back, against work of the allocator",
        does="sets variables that are read when a process starts: a plan with another value is"
        " given a new group of workers",
    ),
}
