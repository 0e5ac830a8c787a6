"""Parameter counts of presets, compared with those that their publishers state."""

import json
from pathlib import Path

import pytest
import torch
import transformers

from search_spaces.errors import ModelError
from search_spaces.presets.catalogue import PresetFacts, preset_config, preset_facts, preset_names
from search_spaces.specification.schema import ModelSpec
from search_spaces.specification.sections import TrainSpec
from workers.models.facts import model_facts
from workers.models.load import describe

# Hugging Face model cards (safetensors counts), tied weights once
PUBLISHED = {
    "deepseek-v2-lite": 15_706_484_224,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 4_300_079_472,  # with what sees images
    "gpt-oss-20b": 20_914_757_184,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "mixtral-8x7b": 46_702_792_704,
    "modernbert-base": 149_655_232,
    "modernbert-large": 395_881_664,
    "olmo-2-1b": 1_484_916_736,
    "olmo-2-7b": 7_298_617_344,
    "phi-4": 14_659_507_200,
    "phi-4-mini": 3_836_021_760,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "smollm3-3b": 3_075_098_624,
    "vit-base": 86_567_656,
    "vit-large": 304_326_632,
    "whisper-large-v3": 1_543_490_560,
    "whisper-small": 241_734_912,
}
TRAIN = TrainSpec(global_batch=8, sequence_length=512)


# with both embeddings: Jiang et al. 2024, arXiv:2401.04088, 13B; the model card of Qwen3-30B-A3B,
# 3.3B; without the embedding that is looked up: OpenAI 2025, arXiv:2508.10925, 3.61B; DeepSeek-AI
# 2024, arXiv:2405.04434, 2.4B
ACTIVE = {
    "mixtral-8x7b": 12.9e9,
    "qwen3-30b-a3b": 3.3e9,
    "gpt-oss-20b": 3.61e9 + 201_088 * 2880,
    "deepseek-v2-lite": 2.4e9 + 102_400 * 2048,
}


@pytest.mark.cases_by_default(1)
@pytest.mark.parametrize("name", ACTIVE)
def test_a_token_meets_the_published_active_parameters(name: str) -> None:
    active = describe(ModelSpec(name=name), TRAIN).active

    assert active == pytest.approx(ACTIVE[name], rel=0.02)


@pytest.mark.cases_by_default(2)
@pytest.mark.parametrize("name", PUBLISHED)
def test_has_the_published_parameters(name: str) -> None:
    facts = describe(ModelSpec(name=name), TRAIN)

    assert facts.parameters == PUBLISHED[name]
    assert preset_facts()[name] == PresetFacts(
        parameters=facts.parameters,
        blocks=facts.blocks,
        active=facts.active or 0,
        task=facts.task or "causal-lm",
    )
    assert [facts.architecture] == preset_config(name)["architectures"]


@pytest.mark.cases_by_default(3)
@pytest.mark.parametrize("name", PUBLISHED)
def test_transformers_alone_builds_the_class_with_the_published_parameters(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(preset_config(name)), encoding="utf-8")
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    (architecture,) = config.architectures
    with torch.device("meta"):
        module = getattr(transformers, architecture)(config)

    assert sum(weight.numel() for weight in module.parameters()) == PUBLISHED[name]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["gemma-3-4b", "vit-base", "whisper-small"])
def test_the_loss_of_a_preset_for_images_or_sound_is_probed(name: str) -> None:
    step = model_facts(ModelSpec(name=name), TRAIN).step

    assert step is not None
    assert (step.not_probed, step.mean_over != ()) == ("", True)


def test_bert_large_has_about_the_published_parameters() -> None:
    facts = describe(ModelSpec(name="bert-large", task="masked-lm"), TRAIN)

    assert 334e6 < facts.parameters < 341e6  # Devlin et al. 2018: 340M, with a pooler
    assert preset_facts()["bert-large"].parameters == facts.parameters
    assert preset_facts()["bert-large"].blocks == facts.blocks
    assert (facts.blocks, facts.packing) == (24, ())


def test_every_preset_is_checked() -> None:
    assert set(preset_names()) == {*PUBLISHED, "bert-large"}


def test_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(ModelError, match=r"no preset 'llama-3-7b'.*'llama-3-70b'"):
        preset_config("llama-3-7b")
