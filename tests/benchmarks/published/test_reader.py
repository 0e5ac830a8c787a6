"""Small tables, read; expectations follow from the columns' meaning or from published numbers."""

from pathlib import Path

import pytest

from benchmarks.published.families import matmul_weights
from benchmarks.published.reader import TablesError, read
from tests.benchmarks.published.rows import read_one, reason_of

GIB = 2**30
LLAMA_8B = {
    "model": "llama3-8b",
    "n_params": "8030261248",
    "n_layers": "32",
    "hidden": "4096",
    "n_heads": "32",
    "n_kv_heads": "8",
    "ffn_hidden": "14336",
    "vocab": "128256",
    "seq_len": "8192",
}
MEGATRON = {"notes": "Megatron-LM", "n_gpus": "8", "tp": "2", "pp": "2", "dp": "2"}


def test_what_is_stated_is_read_as_it_stands(tmp_path: Path) -> None:
    run = read_one(tmp_path, ranking_sets="S001; S002", notes="memory = torch max allocated")

    assert (run.source, run.line, run.sets) == ("table", 2, ("S001", "S002"))
    assert (run.shape.layers, run.shape.hidden, run.shape.ffn) == (24, 2048, 8192)
    assert run.samples_per_second == 10
    assert run.peak_memory_bytes == 30 * GIB
    assert (run.memory_kind, run.oom, run.generation) == ("allocated", False, "ampere")
    assert run.throughput_usable
    assert run.memory_usable
    assert run.fit_usable


def test_weights_of_llama_are_those_published(tmp_path: Path) -> None:
    run = read_one(tmp_path, **LLAMA_8B)

    embedding = 128256 * 4096
    assert matmul_weights(run.shape) + embedding == pytest.approx(8030261248, rel=1e-4)
    assert not run.shape.tied


def test_small_llama_is_tied_by_its_count(tmp_path: Path) -> None:
    shape = {"n_layers": "28", "hidden": "3072", "n_heads": "24", "ffn_hidden": "8192"}
    run = read_one(tmp_path, **LLAMA_8B | shape | {"n_params": "3212749824"})  # Llama 3.2 3B

    assert run.shape.tied


@pytest.mark.parametrize(
    ("cells", "held"),
    [
        ({"precision": "fp32"}, (4, 4, 8)),
        ({"precision": "bf16 amp"}, (4, 4, 8)),
        ({"precision": "bf16-true"}, (2, 2, 4)),
        ({"precision": "bf16 weights (pure, no autocast)"}, (2, 2, 4)),
        ({"precision": "fp16 amp", "sharding": "zero2"}, (2, 2, 12)),
        ({"precision": "bf16", "sharding": "fsdp_full"}, (4, 4, 8)),
        ({"precision": "amp_bf16/PURE", "sharding": "fsdp_full"}, (4, 4, 8)),
        ({"precision": "bf16 weights+bf16 autocast", "notes": "HF Trainer"}, (2, 2, 4)),
        ({"precision": "bf16 weights+bf16 autocast", "sharding": "fsdp_full"}, (4, 4, 8)),
        ({"precision": "bf16", **MEGATRON}, (2, 4, 12)),
        ({"precision": "fp16", **MEGATRON}, (2, 2, 16)),
        ({"precision": "fp32", "optimizer": "adam8bit(bnb)"}, (4, 4, 2)),
        ({"precision": "fp32", "optimizer": "none (forward+backward only)"}, (4, 4, 0)),
    ],
)
def test_bytes_of_a_parameter(
    tmp_path: Path, cells: dict[str, str], held: tuple[float, float, float]
) -> None:
    states = read_one(tmp_path, **cells).states

    assert (states.weight_bytes, states.gradient_bytes, states.state_bytes) == held


@pytest.mark.parametrize(
    ("cells", "compute"),
    [
        ({"precision": "fp32"}, "fp32"),
        ({"precision": "tf32"}, "fp32"),
        ({"precision": "bf16 amp", "sharding": "ddp"}, "autocast"),
        ({"precision": "bf16 amp", "sharding": "fsdp_full"}, "cast"),
        ({"precision": "bf16-true"}, "cast"),
    ],
)
def test_how_it_computes(tmp_path: Path, cells: dict[str, str], compute: str) -> None:
    assert read_one(tmp_path, **cells).states.compute == compute


@pytest.mark.parametrize(
    ("cells", "loss"),
    [
        ({}, "plain"),
        ({"notes": "Liger kernels"}, "linear"),
        ({"notes": "framework_config=foak-fast-kernels"}, "in_place"),
        ({"model": "MPT-1b"}, "in_place"),
    ],
)
def test_how_the_loss_is_computed(tmp_path: Path, cells: dict[str, str], loss: str) -> None:
    assert read_one(tmp_path, **cells).layout.loss == loss


def test_a_quantised_base_with_adapters(tmp_path: Path) -> None:
    run = read_one(
        tmp_path,
        precision="bnb-nf4 base, bf16 weights+bf16 autocast",
        notes="method=lora r=16+bnb-nf4",
        **LLAMA_8B,
    )

    assert (run.method, run.lora_rank, run.lora_targets) == ("lora", 16, ("query", "value"))
    assert (run.states.frozen_bits, run.states.frozen_bytes) == (4, 4.5 / 8)
    assert run.states.compute == "cast"


def test_adapters_are_told_by_their_count(tmp_path: Path) -> None:
    """phi-1.5 with r = 8 on query and value: 24 layers x 2 x 8 x (2048 + 2048)."""
    run = read_one(tmp_path, notes="lora r8; trainable 1,572,864")
    every = read_one(tmp_path, notes="lora r8; trainable 9,437,184")

    assert run.lora_targets == ("query", "value")
    assert every.lora_targets == ()


@pytest.mark.parametrize(
    ("sharding", "stage", "shards"),
    [
        ("none", 0, 1),
        ("ddp", 0, 1),
        ("zero1", 1, 8),
        ("ddp/distributed optimizer (Megatron)", 1, 8),
        ("none/ddp (no distributed optimizer)", 0, 1),
        ("fsdp_grad_op", 2, 8),
        ("zero3? (not stated)", 3, 8),
        ("zero2 (Paddle sharding stage2, degree 4)", 2, 4),
    ],
)
def test_sharding_words(tmp_path: Path, sharding: str, stage: int, shards: int) -> None:
    layout = read_one(tmp_path, sharding=sharding, n_gpus="8", global_batch="32").layout

    assert (layout.zero_stage, layout.shards, layout.data) == (stage, shards, 8)
    assert layout.hybrid == (stage > 0 and shards < 8)


@pytest.mark.parametrize(
    ("cells", "engine"),
    [
        ({"sharding": "none/ddp (no distributed optimizer)"}, "ddp"),
        ({"sharding": "zero1 (distributed optimizer)"}, "megatron"),
        ({"sharding": "zero3", "notes": "HF Trainer"}, "deepspeed"),
        ({"sharding": "zero1", "notes": "Megatron-DeepSpeed"}, "megatron-deepspeed"),
        ({"sharding": "hsdp"}, "fsdp"),
        ({"notes": "HF Trainer"}, "hf"),
        ({"sharding": "", "n_gpus": "2", "tp": "2"}, "megatron"),
    ],
)
def test_engines(tmp_path: Path, cells: dict[str, str], engine: str) -> None:
    assert read_one(tmp_path, **cells).layout.engine == engine


def test_what_is_missing_of_a_batch_follows(tmp_path: Path) -> None:
    missing = {"micro_batch": "", "grad_accum": "", "global_batch": "64"}
    whole = read_one(tmp_path, n_gpus="8", dp="8", **missing).layout
    piped = read_one(tmp_path, **MEGATRON | missing).layout
    counted = read_one(tmp_path, n_gpus="8", grad_accum="", global_batch="64").layout

    assert (whole.micro_batch, whole.accumulation, whole.batch_stated) == (8, 1, False)
    assert (piped.micro_batch, piped.accumulation) == (1, 32)
    assert (counted.micro_batch, counted.accumulation, counted.batch_stated) == (4, 2, True)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({"ckpt": "full"}, (1.0, "full", True)),
        ({"ckpt": "none"}, (0.0, "none", True)),
        ({"ckpt": ""}, (0.0, "none", False)),
        ({"ckpt": "ratio(op-level 0.256 of ops)"}, (0.256, "full", True)),
        ({"ckpt": "selective(op)"}, (1.0, "selective", True)),
        ({"ckpt": "selective(layer)"}, (0.5, "full", True)),
    ],
)
def test_checkpointing(
    tmp_path: Path, cells: dict[str, str], expected: tuple[float, str, bool]
) -> None:
    layout = read_one(tmp_path, **cells).layout

    told = (layout.checkpoint_ratio, layout.checkpoint_mode, layout.checkpoint_stated)
    assert told == expected


@pytest.mark.parametrize(
    ("cells", "attention"),
    [
        ({"attn_impl": "unfused (no flash)"}, "eager"),
        ({"attn_impl": "triton-flash"}, "flash"),
        ({"attn_impl": ""}, "eager"),
        ({"attn_impl": "", "gpu": "H100-80GB"}, "flash"),
        ({"attn_impl": "", **LLAMA_8B}, "flash"),
        ({"attn_impl": "", **LLAMA_8B, "gpu": "V100-32GB"}, "eager"),
    ],
)
def test_attention(tmp_path: Path, cells: dict[str, str], attention: str) -> None:
    assert read_one(tmp_path, **cells).layout.attention == attention


@pytest.mark.parametrize(
    ("offload", "flags"),
    [
        ("none", (False, False)),
        ("cpu optimizer", (True, False)),
        ("cpu params", (True, True)),
        ("activation_cpu", (False, False)),
    ],
)
def test_offload(tmp_path: Path, offload: str, flags: tuple[bool, bool]) -> None:
    layout = read_one(tmp_path, offload=offload).layout

    assert (layout.offload_optimizer, layout.offload_parameters) == flags
    assert layout.offload_activations == (offload == "activation_cpu")


def test_throughput_from_flops_of_the_model(tmp_path: Path) -> None:
    """GPT-3 175B on 1,024 A100, batch 1,536, 140 TFLOP/s with recomputation: Narayanan et al.

    2021, section 5.1 and equation 4: 34 days for 300e9 tokens, so about 102e3 tokens a second.
    """
    run = read_one(
        tmp_path,
        model="gpt-175B",
        n_layers="96",
        hidden="12288",
        n_heads="96",
        vocab="51200",
        seq_len="2048",
        n_gpus="1024",
        tp="8",
        pp="8",
        dp="16",
        precision="fp16",
        ckpt="full",
        micro_batch="1",
        grad_accum="",
        global_batch="1536",
        samples_per_s="",
        tflops_per_gpu="140",
        mfu_or_hfu="hardware TFLOP/s",
    )

    assert run.samples_per_second is not None
    tokens = run.samples_per_second * run.shape.seq_len
    assert tokens == pytest.approx(300e9 / (34 * 86400), rel=0.03)


def test_flops_of_no_known_sense_give_no_throughput(tmp_path: Path) -> None:
    cells = {"samples_per_s": "", "tflops_per_gpu": "100", "mfu_or_hfu": "TFLOP/s as logged"}

    assert read_one(tmp_path, **cells).samples_per_second is None


def test_samples_of_varying_length_count_for_memory_alone(tmp_path: Path) -> None:
    run = read_one(tmp_path, notes="variable length, not packed")

    assert not run.throughput_usable
    assert run.memory_usable


def test_context_ranks_divide_samples_of_a_data_rank(tmp_path: Path) -> None:
    run = read_one(tmp_path, n_gpus="16", tp="2", dp="4", cp_or_sp="cp=2+sp")

    assert (run.layout.data, run.layout.context, run.layout.tensor) == (4, 2, 2)
    assert run.layout.sequence_parallel


def test_a_mixture_of_experts_that_is_known_by_its_name(tmp_path: Path) -> None:
    """Qwen3-30B-A3B has 30.5e9 parameters, of which a token uses 3.3e9, by its model card."""
    cells = {"n_layers": "", "hidden": "", "n_heads": "", "vocab": ""}
    run = read_one(
        tmp_path, **cells, model="Qwen3_30B_a3B", n_gpus="8", dp="8", notes="VP=1; EP=8; MoE"
    )
    assert (run.layout.experts, run.layout.data, run.shape.per_token) == (8, 8, 8)

    embedding = 151936 * 2048
    held = matmul_weights(run.shape, of_all_experts=True)
    assert held + embedding == pytest.approx(30.5e9, rel=0.002)
    assert matmul_weights(run.shape) + embedding == pytest.approx(3.3e9, rel=0.02)


def test_stages_that_differ(tmp_path: Path) -> None:
    notes = (
        "tp per stage [1, 2]; dp per stage [1, 1]; ops per stage [30, 10];"
        " recompute fraction per stage [0.5, 0.0]"
    )
    run = read_one(tmp_path, n_gpus="3", pp="2", dp="1", notes=notes)

    assert [(s.share, s.tensor, s.checkpoint_ratio) for s in run.stages] == [
        (0.75, 1, 0.5),
        (0.25, 2, 0.0),
    ]


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"n_layers": ""}, "no model shape"),
        ({"seq_len": ""}, "no sequence length"),
        ({"gpu": ""}, "no GPU"),
        ({"micro_batch": "", "global_batch": ""}, "no batch size"),
        ({"model": "mixtral-8x7b"}, "mixture of experts"),
        ({"model": "DeepSeekV4 Flash", "notes": "VP=1; EP=8; MoE"}, "that are not counted"),
        ({"model": "GPT OSS 120B", "tp": "2", "n_gpus": "2"}, "experts over tensor ranks"),
        ({"cp_or_sp": "2"}, "degrees do not multiply"),
        ({"notes": "IMPLAUSIBLE throughput"}, "marked as contradicting itself"),
        ({"notes": "peft_type PROMPT_TUNING"}, "adapters other than LoRA"),
        ({"n_gpus": "8", "tp": "3", "dp": "2"}, "degrees do not multiply"),
        ({"samples_per_s": "", "peak_mem_gib": ""}, "no measurement"),
        ({"hidden": "wide"}, "hidden is no number"),
        ({"peak_mem_gib": "-30"}, "peak_mem_gib is no number"),
        ({"tp": "2", "n_gpus": "2", "notes": "lora r8"}, "adapters over tensor ranks"),
    ],
)
def test_what_is_skipped_says_why(tmp_path: Path, cells: dict[str, str], reason: str) -> None:
    assert reason in reason_of(tmp_path, **cells)


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(TablesError, match="is no directory"):
        read(tmp_path / "none")
    with pytest.raises(TablesError, match="has no table"):
        read(tmp_path)
    (tmp_path / "odd.csv").write_text("model,gpu\n", encoding="utf-8")
    with pytest.raises(TablesError, match="lacks columns: source"):
        read(tmp_path)
