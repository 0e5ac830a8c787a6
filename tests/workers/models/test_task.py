"""The task of a model: as specified, else that of the class in its configuration."""

import pytest
from transformers import AutoConfig

from search_spaces.errors import ModelError
from search_spaces.presets.catalogue import preset_config, preset_facts, preset_names
from search_spaces.specification.schema import ModelSpec, Task
from workers.models.task import task_of


def found(kind: str, *architectures: str, task: Task | None = None) -> Task:
    config = AutoConfig.for_model(kind, architectures=list(architectures))
    return task_of(ModelSpec(name="./folder", task=task), config)


@pytest.mark.parametrize(
    ("kind", "architecture", "task"),
    [
        ("bert", "BertForMaskedLM", "masked-lm"),
        ("bert", "BertLMHeadModel", "causal-lm"),
        ("bert", "BertForSequenceClassification", "sequence-classification"),
        ("t5", "T5ForConditionalGeneration", "seq2seq"),
        ("bart", "BartForConditionalGeneration", "seq2seq"),  # in the list for masked-lm too
        ("llama", "LlamaForCausalLM", "causal-lm"),
        ("gemma3", "Gemma3ForConditionalGeneration", "image-text-to-text"),  # causal-lm too
        ("deit", "DeiTForImageClassificationWithTeacher", "image-classification"),
        ("wav2vec2", "Wav2Vec2ForCTC", "ctc"),
        ("whisper", "WhisperForConditionalGeneration", "speech-seq2seq"),
        ("clip", "CLIPModel", "zero-shot-image-classification"),
    ],
)
def test_the_class_decides(kind: str, architecture: str, task: Task) -> None:
    assert found(kind, architecture) == task
    assert found("bert", architecture, task="masked-lm") == "masked-lm"


def test_presets_keep_theirs() -> None:
    stated = {name: preset_config(name)["architectures"][0] for name in preset_names()}

    assert {
        name: found(preset_config(name)["model_type"], architecture)
        for name, architecture in stated.items()
    } == {name: facts.task for name, facts in preset_facts().items()}


@pytest.mark.parametrize(
    ("kind", "task"),
    [
        *(("gpt2", "causal-lm"), ("bert", "masked-lm"), ("t5", "seq2seq")),
        *(("vit", "image-classification"), ("llava", "image-text-to-text")),
    ],
)
def test_without_a_class_the_only_usual_head_decides(kind: str, task: Task) -> None:
    assert found(kind) == task


@pytest.mark.parametrize(
    ("kind", "architectures", "said"),
    [
        ("bart", (), "a bart without a class in architectures.*set model.task: seq2seq or"),
        ("bert", ("BertModel",), r"a BertModel.*input_ids.*set model.task: masked-lm or sequence"),
        ("bert", ("BertForPreTraining",), "next_sentence_label.*function of yours"),
        (
            "vit",
            ("ViTForMaskedImageModeling",),
            "bool_masked_pos.*model.task: image-classification",
        ),
        ("detr", ("DetrForObjectDetection",), "pixel_mask.*model: mymodel:build"),
    ],
)
def test_what_is_unknown_is_asked_for(kind: str, architectures: tuple[str], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        found(kind, *architectures)
