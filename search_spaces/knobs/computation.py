"""Knobs of a plan. How a step is computed: kernels, precision, batches, optimizer."""

from search_spaces.knobs import search_defaults
from search_spaces.knobs.knob import Knob

COMPUTATION = (
    Knob(
        name="attention",
        trades="eager stores the whole attention matrix, flash never does, sdpa uses the kernel"
        " that torch picks",
        does="builds a transformers model with it; a user's function has its own",
        default=search_defaults.attentions,
    ),
    Knob(
        name="precision",
        trades="speed and memory for activations against accuracy; weights are held in `states`",
        does="`torch`: FSDP2's mixed precision or autocast, with dynamic loss scaling for fp16;"
        " `deepspeed`: its bf16 or fp16 mode",
        default=lambda choice: (choice.spec.train.precision,),
        lossy=lambda value, spec: value != spec.train.precision,
        lossy_values="all but `train.precision`",
    ),
    Knob(
        name="batching",
        trades="less padding against uneven shapes: grouped batches samples of similar length,"
        " packed concatenates samples",
        does="arranges each step's samples in micro-batches",
        default=search_defaults.batchings,
    ),
    Knob(
        name="pad_multiple",
        trades="fewer widths for which libraries choose kernels, against more padding",
        does="pads rows to a multiple of that many tokens",
        default=search_defaults.pad_multiples,
        is_active=lambda chosen: bool(chosen["batching"] != "packed"),
        active="if batching is padded or grouped",
        depends_on=("batching",),
        # no direction of memory: wider rows take more, but tensors of fewer sizes fragment less
        label="rows of {}",
    ),
    Knob(
        name="micro_batch_tokens",
        trades="fewer long samples in a forward pass, against more passes",
        does="limits the tokens of each, padding included; 0: no limit",
        evidence="8 samples took 227 MB and 0.23 s a step, 2 samples 65 MB and 0.12 s, 1,024"
        " tokens 61 MB and 0.08 s (`pytest -m thorough"
        " tests/workers/measure/test_micro_batch_tokens.py -s`)",
        default=search_defaults.token_limits,
        is_active=lambda chosen: bool(chosen["batching"] != "packed"),
        active="if batching is padded or grouped",
        depends_on=("batching", "micro_batch", "pipeline"),
        label="{} tokens a pass",
    ),
    Knob(
        name="compile",
        trades="faster steps against compile time",
        does="torch.compile for each block, recomputation included",
        default=search_defaults.compiles,
        label="compile",
    ),
    Knob(
        name="compile_mode",
        trades="max-autotune-no-cudagraphs tries several kernels for each matmul, against compile"
        " time",
        does="sets `mode` of torch.compile",
        is_active=lambda chosen: bool(chosen["compile"]),
        active="with compile",
        depends_on=("compile",),
        forecast=False,
        label="{}",
    ),
    # Not searched by default: nothing measured shows that it beats checkpoint_ratio at equal peaks.
    Knob(
        name="checkpoint_budget",
        trades="less memory for activations, against computing more twice",
        does="sets torch's activation_memory_budget; forecast as checkpoint_ratio 1 - budget",
        evidence="six compiled blocks took 379 MB, 292 with 0.5, 218 with 0, 220 with"
        " checkpoint_ratio 1 (`pytest -m thorough tests/workers/parallel/test_compile.py -s`)",
        is_active=lambda chosen: bool(chosen["compile"]),
        active="with compile",
        depends_on=("compile",),
        label="budget {}",
    ),
    Knob(
        name="float8",
        trades="matmuls of blocks in 8 bits against accuracy: tensorwise has a scale for each"
        " tensor, rowwise for each row, which is slower",
        does="replaces linear layers of blocks by torchao's; emulated on a CPU, not shown on a GPU",
        evidence="others report 6,150 tokens/s in bf16, 7,690 tensorwise and 6,768 rowwise for"
        " Llama 3 8B on 8 H100 (github.com/pytorch/ao, torchao/float8/README.md)",
        engines="torch",
        is_active=lambda chosen: bool(chosen["compile"]),
        active="with compile",
        depends_on=("compile",),
        lossy=lambda value, _: value != "none",
        lossy_values="tensorwise, rowwise",
        label="float8 {}",
    ),
    Knob(
        name="loss",
        trades="chunked never holds all logits, against smaller products; compiled fuses what"
        " follows the head's product; fused does both in a kernel",
        does="has the head return the loss: by chunks of tokens, torch.compile, or Liger's kernel"
        " (CUDA, not shown)",
        evidence="chunked took a rank's peak from 1,750 to 297 MB for 64,000 words and 2,048"
        " tokens (`pytest -m thorough tests/workers/parallel/test_head_loss.py -s`);"
        " others report 24 GB to 1 MB for a fused loss of Gemma 2 2B"
        " (arXiv:2411.09009)",
        default=search_defaults.losses,
        depends_on=("tensor",),
        label="{} loss",
    ),
    Knob(
        name="vocab_multiple",
        trades="faster products on tensor cores, against a copy of the head's weight",
        does="pads the head's product, not its weight, by words outside the loss",
        evidence="an H200 runs 8,192 x 1,600 x 50,257 at 128 TFLOP/s, 6,400 columns at 669"
        " (`benchmarks/results/gpu/h200/ceilings.csv`); Megatron-LM pads to 128",
        default=search_defaults.vocab_multiples,
        depends_on=("tensor",),
        label="{} words",
    ),
    Knob(
        name="mlp_tiles",
        trades="less memory on long sequences, against computing MLPs twice",
        does="computes MLPs by tiles of the sequence, recomputed in backward",
        evidence="under allocator mmap, 4 tiles took a rank from 206 to 65 MB"
        " (`pytest -m thorough tests/workers/parallel/test_mlp_tiles.py -s`); others report"
        " 16 times longer sequences, with offload too (arXiv:2506.13996)",
        default=search_defaults.tiles,
        depends_on=("tensor", "compile"),
        label="{} tiles",
    ),
    Knob(
        name="experts_kernel",
        trades="grouped_mm multiplies all experts of a layer in one kernel, eager one after the"
        " other; batched_mm copies their weights for each token",
        does="sets transformers' `experts_implementation`",
        default=search_defaults.experts_kernels,
        forecast=False,
        label="{} experts",
    ),
    Knob(
        name="optimizer",
        trades="adamw_fused updates in few kernels, adamw_foreach in more and with temporaries;"
        " adamw_8bit and adafactor take less memory, but approximate the moments; those of"
        " adamw_8bit_paged move to the host if a GPU is full (not shown)",
        does="creates that optimizer; another train.optimizer has one implementation. With"
        " offloaded states DeepSpeed's CPU Adam replaces adamw_fused",
        default=search_defaults.optimizers,
        lossy=lambda value, spec: (
            spec.train.optimizer == "adamw"
            and value in {"adamw_8bit", "adamw_8bit_paged", "adafactor"}
        ),
        lossy_values="adamw_8bit, adamw_8bit_paged, adafactor",
        label="{}",
    ),
    Knob(
        name="states",
        trades="half the bytes of weights, gradients and moments, against small updates, which"
        " bf16_stochastic keeps on average",
        does="casts weights before the split; ZeRO's masters; torchao's AdamW",
        evidence="Llama 3 8B: 120 GiB of states become 60, or 45 with adamw_8bit"
        " (`tests/workers/parallel/test_states.py`)",
        lossy=lambda value, _: value != "fp32",
        lossy_values="bf16, bf16_stochastic",
        label="{} states",
    ),
)
