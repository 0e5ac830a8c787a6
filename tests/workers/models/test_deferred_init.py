"""Initial values drawn after the split: those of transformers, and equal under every split.

They are compared with a plain build by transformers, and with the whole model filled at once.
"""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from search_spaces.specification.schema import ModelSpec
from search_spaces.specification.sections import TrainSpec
from tests.workers.launch import Group, Groups
from tests.workers.models.tiny_models import TINY_BERT, TINY_GPT2, TINY_LLAMA
from tests.workers.values import CALL_SECONDS, a_plan
from workers.models.built import BuiltModel, seeded
from workers.models.load import build, build_whole
from workers.worker import Worker

TRAIN = TrainSpec(global_batch=8, sequence_length=32)
CPU = torch.device("cpu")
SIGMAS = 6.0  # of the sampling error, over some hundred weights
MIB = 2**20
FOLDERS: dict[str, dict[str, Any]] = {
    "opt": {
        "model_type": "opt", "hidden_size": 64, "ffn_dim": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "vocab_size": 500, "word_embed_proj_dim": 64, "pad_token_id": 1,
    },
    "qwen2": {
        "model_type": "qwen2", "hidden_size": 64, "intermediate_size": 96, "vocab_size": 500,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    },
    "t5": {
        "model_type": "t5", "d_model": 64, "d_ff": 96, "d_kv": 16, "num_heads": 4,
        "num_layers": 2, "vocab_size": 500, "decoder_start_token_id": 0,
    },
    "modernbert": {
        "model_type": "modernbert", "hidden_size": 64, "intermediate_size": 96, "pad_token_id": 3,
        "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 500,
    },
    "mamba": {
        "model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 500,
        "state_size": 4,
    },
}  # fmt: skip
TASKS: dict[str, Any] = {"t5": "seq2seq", "modernbert": "masked-lm"}


def _model(name: str, folder: Path) -> ModelSpec:
    presets = {"llama": TINY_LLAMA, "gpt2": TINY_GPT2, "bert": TINY_BERT}
    if name in presets:
        return presets[name]
    (folder / "config.json").write_text(json.dumps(FOLDERS[name]))
    return ModelSpec(name=str(folder), task=TASKS.get(name, "causal-lm"))


def _values(module: nn.Module) -> dict[str, torch.Tensor]:
    tensors = [*module.named_parameters(remove_duplicate=False), *module.named_buffers()]
    return {name: tensor.detach() for name, tensor in tensors}


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "t5", "opt", "qwen2", "modernbert"])
def test_values_are_spread_as_in_a_plain_build(name: str, tmp_path: Path) -> None:
    built = build(_model(name, tmp_path), TRAIN, attention="eager")
    module: Any = built.module
    assert all(tensor.is_meta for tensor in _values(module).values())

    with seeded(1):
        plain = _values(type(module)(copy.deepcopy(module.config)))
    built.initial.materialise(module, CPU)
    values = _values(module)

    assert values.keys() == plain.keys()
    for key, expected in plain.items():
        mine = values[key]
        assert (mine.dtype, mine.shape) == (expected.dtype, expected.shape)
        if not mine.is_floating_point() or expected.unique().numel() < expected.numel() // 2:
            assert torch.equal(mine, expected), key  # norms, biases, masks
        elif key not in dict(module.named_parameters(remove_duplicate=False)):
            assert torch.equal(mine, expected), key  # rotary frequencies
        else:
            spread, error = expected.std(), SIGMAS * expected.std() / math.sqrt(mine.numel())
            assert abs(mine.std() - spread) < error, key
            assert abs(mine.mean() - expected.mean()) < 2 * error, key


def test_the_residual_projections_of_gpt2_are_scaled_down() -> None:
    """Radford et al. 2019, section 2.3: divided by the square root of the residual layers."""
    module: Any = build_whole(TINY_GPT2, TRAIN, attention="eager").module

    spread = torch.cat([block.mlp.c_proj.weight.flatten() for block in module.transformer.h]).std()
    expected = module.config.initializer_range / math.sqrt(2 * module.config.n_layer)
    assert spread.item() == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("name", ["bert", "opt"])
def test_the_row_of_the_padding_is_zero(name: str, tmp_path: Path) -> None:
    module: Any = build_whole(_model(name, tmp_path), TRAIN, attention="eager").module
    table = module.get_input_embeddings()

    assert table.padding_idx is not None
    assert table.weight[table.padding_idx].eq(0).all()
    assert table.weight.ne(0).sum() == table.weight.numel() - table.embedding_dim


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "t5"])
def test_tied_weights_stay_tied(name: str, tmp_path: Path) -> None:
    module: Any = build_whole(_model(name, tmp_path), TRAIN, attention="eager").module

    assert module.get_output_embeddings().weight is module.get_input_embeddings().weight


def test_what_cannot_be_told_is_built_whole(tmp_path: Path) -> None:
    """Mamba computes its step sizes from a draw."""
    first, second = (
        build_whole(_model("mamba", tmp_path), TRAIN, attention="eager") for _ in range(2)
    )

    values, again = _values(first.module), _values(second.module)
    assert not any(tensor.is_meta for tensor in values.values())
    assert all(torch.equal(values[key], again[key]) for key in values)


def test_a_wrapped_block_has_the_values_of_the_plain_one() -> None:
    plain = build_whole(TINY_LLAMA, TRAIN, attention="eager")
    built = build(TINY_LLAMA, TRAIN, attention="eager")
    layers: Any = built.module.get_submodule("model.layers")

    layers[0] = checkpoint_wrapper(layers[0])
    built.initial.materialise(built.module, CPU)

    expected = _values(plain.blocks[0])
    assert all(torch.equal(one, expected[key]) for key, one in _values(built.blocks[0]).items())
    again = build(TINY_LLAMA, TRAIN, attention="eager")
    with pytest.raises(LookupError, match=r"self_attn\.q_proj\.weight"):
        again.initial.materialise(again.blocks[0], CPU)


# On real ranks. 35 = 18 + 17 rows of 70, 501 = 251 + 250: no split comes out even.

ODD_LLAMA = TINY_LLAMA.model_copy(
    update={"config": {**TINY_LLAMA.config, "intermediate_size": 70, "vocab_size": 501}}
)
TENSOR_PLAN: dict[str, Any] = {
    "mlp.gate_proj": ColwiseParallel,
    "mlp.up_proj": ColwiseParallel,
    "mlp.down_proj": RowwiseParallel,
}


def _sharded(worker: Worker, tensor: int) -> dict[str, Any]:
    """Weights of a model that is split over all ranks, gathered after a forward pass."""
    built = build(ODD_LLAMA, TRAIN, attention="eager")
    plan = a_plan(data=2, tensor=tensor, zero_stage=3)
    mesh = worker.group.acquire(CALL_SECONDS, plan)
    assert mesh is not None
    for block in built.blocks:
        if tensor > 1:
            styles = {name: style() for name, style in TENSOR_PLAN.items()}
            parallelize_module(block, mesh.devices["tensor"], styles)
        fully_shard(block, mesh=mesh.devices["shard"])
    fully_shard(built.module, mesh=mesh.devices["shard"])
    built.initial.materialise(built.module, CPU)
    module: Any = built.module
    loss = module(input_ids=torch.arange(8)[None], labels=torch.arange(8)[None]).loss
    loss.backward()
    weights = {
        name: (weight.full_tensor() if isinstance(weight, DTensor) else weight).detach().numpy()
        for name, weight in module.named_parameters(remove_duplicate=False)
    }
    return {"loss": loss.item(), "weights": weights}


@pytest.mark.parametrize("tensor", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_shards_are_those_of_the_whole_model(groups: Groups, tensor: int) -> None:
    expected: Any = build_whole(ODD_LLAMA, TRAIN, attention="eager").module
    tokens = torch.arange(8)[None]
    loss = expected(input_ids=tokens, labels=tokens).loss.item()

    ranks = groups.of(2 * tensor).call(_sharded, tensor)

    for rank in ranks:
        assert rank["loss"] == pytest.approx(loss, rel=1e-5)
        for name, value in _values(expected).items():
            if name in rank["weights"]:
                assert torch.equal(torch.from_numpy(rank["weights"][name]), value), name
        assert "lm_head.weight" in rank["weights"]


LARGE = ModelSpec(
    name="llama-3.2-1b",
    config={
        "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 2, "head_dim": 64,
        "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 4200,
    },
)  # fmt: skip
WEIGHTS_MIB = 2 * 8.2  # the one that is drawn, and what the allocator keeps of another


def _grown(worker: Worker) -> tuple[float, float]:
    """MiB that this rank holds of the model, and the most that its memory grew."""
    built = build(LARGE, TRAIN, attention="eager")  # for imports and caches
    mesh = worker.group.acquire(CALL_SECONDS, a_plan(zero_stage=3))
    assert mesh is not None
    before = _status_mib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    built = build(LARGE, TRAIN, attention="eager")
    for part in (*built.blocks, built.module):
        fully_shard(part, mesh=mesh.devices["shard"])
    built.initial.materialise(built.module, CPU)
    held = sum(
        weight.to_local().nbytes
        for weight in built.module.parameters()
        if isinstance(weight, DTensor)
    )
    return held / MIB, _status_mib("VmHWM") - before


def _status_mib(field: str) -> float:
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{field}:")[2].split()[0]) / 1024


def test_no_rank_ever_holds_more_than_its_shard_and_one_weight(pair: Group) -> None:
    built: BuiltModel = build(LARGE, TRAIN, attention="eager")
    whole_mib = 4 * sum(weight.numel() for weight in built.module.parameters()) / MIB
    assert whole_mib > 40

    for held, grown in pair.call(_grown):
        assert held == pytest.approx(whole_mib / 2, rel=0.01)
        assert grown < held + WEIGHTS_MIB < whole_mib
