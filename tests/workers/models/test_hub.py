"""Models of transformers: facts, builds, and messages about impossible models."""

import json
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from search_spaces.errors import ModelError
from search_spaces.specification.schema import ModelSpec
from search_spaces.specification.sections import TrainSpec
from tests.workers.models.tiny_models import TINY_GPT2, TINY_LLAMA
from workers.models import hub
from workers.models.load import build, build_whole, describe

TRAIN = TrainSpec(global_batch=8, sequence_length=64)


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def _folder(path: Path, **config: Any) -> str:
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def test_facts_of_a_changed_preset() -> None:
    facts = describe(TINY_LLAMA, TRAIN)

    assert facts.architecture == "LlamaForCausalLM"
    assert (facts.blocks, facts.vocab_size, facts.packing) == (2, 512, facts.attentions)
    # whatever this machine has installed: trials run on others
    assert facts.attentions == ("sdpa", "eager", "flash_attention_2", "flash_attention_3")
    assert facts.parameters == sum(
        weight.numel() for weight in build(TINY_LLAMA, TRAIN, attention="eager").module.parameters()
    )


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_attention_is_the_one_asked_for(attention: Any) -> None:
    module: Any = build(TINY_GPT2, TRAIN, attention=attention).module

    assert module.config._attn_implementation == attention
    assert module.config.use_cache is False


def test_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = build_whole(TINY_LLAMA, TRAIN, attention="eager").module.state_dict()
    torch.manual_seed(2)
    before = torch.random.get_rng_state()
    second = build_whole(TINY_LLAMA, TRAIN, attention="sdpa").module.state_dict()
    other = build_whole(
        TINY_LLAMA, TRAIN.model_copy(update={"seed": 1}), attention="sdpa"
    ).module.state_dict()

    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])
    assert {tensor.dtype for tensor in first.values()} == {torch.float32}


def test_encoder_and_decoder_have_blocks(tmp_path: Path) -> None:
    name = _folder(
        tmp_path, model_type="t5", d_model=32, d_ff=64, d_kv=8, num_heads=4, num_layers=3,
        num_decoder_layers=2, vocab_size=512, decoder_start_token_id=0,
    )  # fmt: skip
    spec = ModelSpec(name=name, task="seq2seq")

    assert describe(spec, TRAIN).blocks == 5
    assert len(build(spec, TRAIN, attention="eager").blocks) == 5


def test_mamba_does_not_keep_packed_samples_apart(tmp_path: Path) -> None:
    name = _folder(
        tmp_path, model_type="mamba", hidden_size=32, num_hidden_layers=2, vocab_size=512,
        state_size=4,
    )  # fmt: skip

    assert describe(ModelSpec(name=name), TRAIN).packing == ()


def test_packing_is_known_for_each_attention(tmp_path: Path) -> None:
    """GPT-J picks its attention from a table of its own: the probe of flash attention fails."""
    name = _folder(
        tmp_path, model_type="gptj", n_embd=32, n_layer=2, n_head=4, rotary_dim=4, vocab_size=512,
        n_positions=64,
    )  # fmt: skip

    facts = describe(ModelSpec(name=name), TRAIN)

    assert "flash_attention_2" in facts.attentions
    assert facts.packing == ("eager",)


def test_learned_positions_end() -> None:
    with pytest.raises(ModelError, match=r"sequence_length is 129.*128 tokens"):
        describe(TINY_GPT2, TrainSpec(global_batch=8, sequence_length=129))


def test_padding_takes_rows_of_robertas_positions(tmp_path: Path) -> None:
    name = _folder(
        tmp_path, model_type="roberta", hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, vocab_size=512, max_position_embeddings=66, pad_token_id=1,
    )  # fmt: skip
    spec = ModelSpec(name=name, task="masked-lm")

    describe(spec, TrainSpec(global_batch=8, sequence_length=64))
    with pytest.raises(ModelError, match="64 tokens"):
        describe(spec, TrainSpec(global_batch=8, sequence_length=65))


def test_rotary_positions_do_not_end() -> None:
    spec = TINY_LLAMA.model_copy(
        update={"config": {**TINY_LLAMA.config, "max_position_embeddings": 32}}
    )

    assert describe(spec, TrainSpec(global_batch=8, sequence_length=33)).blocks


@pytest.mark.parametrize(
    ("name", "config", "said"),
    [
        ("llama-3.2-1b", {"num_hidden_layer": 2}, "not a field of LlamaConfig.*num_hidden_layers"),
        ("llama-3.2-1b", {"hidden_size": "wide"}, "'hidden_size' expected int, got str"),
        ("llama-3.2-1b", {"hidden_act": "sillu"}, "cannot be built: 'sillu' is not known"),
        ("gpt2", {"n_head": 7}, "cannot be built.*768.*7"),
        ("gpt2", {"use_cache": True}, "use_cache cannot be set"),
        ("./nowhere", {}, "not a folder with a config.json"),
        ("llama3-8b", {}, "nearest preset is 'llama-3-8b'"),
        ("two words", {}, "not a preset, folder or Hub id"),
    ],
)
def test_says_what_is_wrong(name: str, config: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        describe(ModelSpec(name=name, config=config), TRAIN)

    assert "\n" not in str(caught.value)


def test_a_task_without_a_head_names_those_with_one() -> None:
    with pytest.raises(ModelError, match=r"no head for task masked-lm.*causal-lm"):
        describe(ModelSpec(name="gpt2", task="masked-lm"), TRAIN)
    with pytest.raises(ModelError, match=r"is an encoder.*masked-lm"):
        describe(ModelSpec(name="bert-large", task="causal-lm"), TRAIN)


def test_code_of_its_own_must_be_trusted(tmp_path: Path) -> None:
    name = _folder(tmp_path, model_type="mine", auto_map={"AutoConfig": "mine.MineConfig"})

    with pytest.raises(ModelError, match="trust_remote_code: true"):
        describe(ModelSpec(name=name), TRAIN)


def test_a_folder_without_use(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        describe(ModelSpec(name=str(tmp_path)), TRAIN)
    with pytest.raises(ModelError, match="has no model_type"):
        describe(ModelSpec(name=_folder(tmp_path, hidden_size=3)), TRAIN)
    with pytest.raises(ModelError, match=r"'lama'.*did you mean 'llama'"):
        describe(ModelSpec(name=_folder(tmp_path, model_type="lama")), TRAIN)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        describe(ModelSpec(name=str(tmp_path)), TRAIN)


@pytest.mark.parametrize(
    ("generation", "capability", "lack"),
    [
        (2, (7, 5), "needs compute capability 8.0, but the GPU has 7.5"),
        (2, (8, 0), None),
        (3, (8, 9), "needs compute capability 9.0, but the GPU has 8.9"),
        (3, (10, 0), "needs compute capability 9.0, but the GPU has 10.0"),
    ],
)
def test_flash_attention_needs_a_gpu_that_is_new_enough(
    monkeypatch: pytest.MonkeyPatch,
    generation: Literal[2, 3],
    capability: tuple[int, int],
    lack: str | None,
) -> None:
    """An installed package does not run on every GPU; its plans would crash there."""
    cuda = torch.device("cuda", 0)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    for name in ("is_flash_attn_2_available", "is_flash_attn_3_available"):
        monkeypatch.setattr(hub, name, lambda: True)

    found = hub.missing_for_flash(generation, cuda)

    assert (found is None) if lack is None else (lack in (found or ""))


@pytest.mark.parametrize(
    ("quantization", "lora", "found"),
    [
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, {}, "nf4"),
        ({"load_in_8bit": True}, {"base": "int8"}, "int8"),
        ({"load_in_8bit": True}, {"base": "nf4"}, "is quantized to int8, which can only"),
        ({"load_in_8bit": True}, None, "only be trained with train.method lora and .*base int8"),
        ({"load_in_4bit": True}, {}, "is quantized .fp4., and adapters are trained on"),
        *(
            ({"quant_method": method}, lora, f"is quantized .{method}., and adapters")
            for method in ("gptq", "awq", "fp8", "compressed-tensors", "mxfp4")
            for lora in (None, {})
        ),
    ],
    ids=str,
)
def test_a_quantized_folder_is_understood_or_refused(
    tmp_path: Path, quantization: dict[str, Any], lora: dict[str, Any] | None, found: str
) -> None:
    config = build(TINY_LLAMA, TRAIN, attention="eager").module.config.to_dict()
    name = _folder(tmp_path, **config | {"quantization_config": quantization})
    method = {} if lora is None else {"method": "lora", "lora": lora}
    train = TrainSpec.model_validate({"global_batch": 8, "sequence_length": 64} | method)

    if found in ("nf4", "int8"):
        assert describe(ModelSpec(name=name), train).base == found
        return
    with pytest.raises(ModelError, match=found):
        describe(ModelSpec(name=name), train)
