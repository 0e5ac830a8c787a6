"""Models of images, of sound and of several modalities: their shapes, traced and trained."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch

from search_spaces.costs.plan_encoding import VariantKey
from search_spaces.errors import DataError, ModelError
from search_spaces.facts import ClusterFacts, Count, TargetRule
from search_spaces.rules.base import RuleContext
from search_spaces.rules.registry import refusal
from search_spaces.specification.schema import SweepSpec
from tests.workers.launch import Groups
from tests.workers.parity.comparison import Expected, Parity
from tests.workers.parity.layouts import COMMON
from tests.workers.values import a_plan, a_spec
from workers.data.batches import FunctionSource
from workers.models.built import batch_source
from workers.models.function_probe import with_function_findings
from workers.models.load import build_whole, describe
from workers.prepare import prepare
from workers.tracing.trace import trace

_TEXT: dict[str, Any] = {
    **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 96},
    **{"num_attention_heads": 4, "max_position_embeddings": 64, "initializer_range": 0.2},
    **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
}
_VISION: dict[str, Any] = {**_TEXT, "image_size": 16, "patch_size": 8}
_SOUND: dict[str, Any] = {
    **_TEXT,
    **{"conv_dim": [16, 16], "conv_kernel": [10, 4], "conv_stride": [5, 4], "vocab_size": 32},
    **{"num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16, "mask_time_prob": 0.0},
    **{"num_conv_pos_embedding_groups": 4, "layerdrop": 0.0, "hidden_dropout": 0.0},
    **{"attention_dropout": 0.0, "feat_proj_dropout": 0.0, "final_dropout": 0.0},
    **{"activation_dropout": 0.0, "ctc_loss_reduction": "mean"},
}
_QWEN_TEXT = _TEXT | {
    "num_key_value_heads": 2,
    "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4},
}
_QWEN_VISION = {
    **{"depth": 2, "hidden_size": 32, "out_hidden_size": 32, "num_heads": 4, "patch_size": 4},
    **{"intermediate_size": 64, "window_size": 16, "fullatt_block_indexes": [1]},
}
_LABEL, _IDS, _IMAGE = {"labels": ()}, {"input_ids": (32,)}, {"pixel_values": (3, 16, 16)}
_FRAMES = {"input_values": (5 * (4 * 31 + 4 - 1) + 10,)}  # of which convolutions make 32 frames
CASES: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "ViTForImageClassification": (_VISION, _IMAGE | _LABEL),
    "Wav2Vec2ForCTC": (
        _SOUND | {"feat_extract_norm": "layer"},
        _FRAMES | {"attention_mask": _FRAMES["input_values"], "labels": (8,)},
    ),
    "WhisperForConditionalGeneration": (
        {
            **{"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "num_mel_bins": 8},
            **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "vocab_size": 96},
            **{"max_source_positions": 20, "max_target_positions": 16, "pad_token_id": 0},
            **{"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "decoder_start_token_id": 1},
            **{"dropout": 0.0, "eos_token_id": 2, "bos_token_id": 1},
        },
        {"input_features": (8, 40), "labels": (16,)},
    ),
    "LlavaForConditionalGeneration": (
        {
            **{"image_token_index": 95, "text_config": _TEXT | {"model_type": "llama"}},
            "vision_config": _VISION | {"model_type": "clip_vision_model"},
        },
        _IMAGE | _IDS | {"labels": (32,)},
    ),
    "Qwen2_5_VLForConditionalGeneration": (
        {
            **{"image_token_id": 95, "video_token_id": 94, "vision_start_token_id": 93},
            **{"text_config": _QWEN_TEXT, "vision_config": _QWEN_VISION},
        },
        _IDS
        | {"labels": (32,), "mm_token_type_ids": (32,), "image_grid_thw": (3,)}
        | {"pixel_values": (64, 3 * 2 * 4 * 4)},  # 16 tokens of 2 x 2 patches
    ),
    "CLIPModel": (
        {"vision_config": _VISION, "text_config": _TEXT | {"eos_token_id": 2}},
        _IMAGE | _IDS,
    ),
}
TYPES = {"CLIP": "clip", "Llava": "llava", "ViT": "vit"} | {
    **{"Qwen2_5_VL": "qwen2_5_vl", "Wav2Vec2": "wav2vec2", "Whisper": "whisper"}
}


def spec_of(
    name: str,
    folder: Path,
    sequence_length: int = 32,
    config: Mapping[str, Any] = MappingProxyType({}),
    **data: Any,
) -> SweepSpec:
    kind = TYPES[name.partition("For")[0].removesuffix("Model")]
    fields = {"architectures": [name], "model_type": kind, **CASES[name][0], **config}
    (folder / "config.json").write_text(json.dumps(fields))
    train = {"sequence_length": sequence_length, "learning_rate": 1e-3}
    return a_spec(model=str(folder), data={"lengths": {}} | data, train=train)


@pytest.mark.cases_by_default(2)
@pytest.mark.parametrize("name", CASES)
def test_a_folder_is_traced_and_trains_on_the_shapes_of_its_class(
    name: str, tmp_path: Path
) -> None:
    spec = spec_of(name, tmp_path)
    model = build_whole(spec.model, spec.train, attention="sdpa")
    source = batch_source(model, spec)
    assert isinstance(source, FunctionSource)
    alone, both = (dict(source.batch(numbers)[0].inputs) for numbers in ((3,), (2, 3)))

    asked = {alone.pop("return_loss", None), both.get("return_loss")}
    assert asked == {True if name == "CLIPModel" else None}
    joined = ("pixel_values",) if "image_grid_thw" in both else ()
    shapes = {key: value.shape[key not in joined :] for key, value in alone.items()}
    assert shapes == CASES[name][1]
    assert all(torch.equal(value, both[key][-len(value) :]) for key, value in alone.items())
    others = [torch.equal(value, both[key][: len(value)]) for key, value in alone.items()]
    assert not all(others)
    loss = model.module.train()(**both).loss
    loss.backward()
    assert type(model.module).__name__ == name
    assert all(
        weight.grad is None or weight.grad.isfinite().all() for weight in model.module.parameters()
    )
    assert loss.isfinite()
    footprint = trace(spec, [VariantKey("sdpa", "cast", "none")], cache=tmp_path)
    assert footprint.depth == len(model.blocks)
    assert footprint.work is not None
    assert footprint.work.matmul_flops > 0


PLANS = ("alone, padded", "alone, one sample", "ddp", "zero 3, checkpoints")
PROBED: list[tuple[str, dict[str, Any], Count, tuple[str, ...]]] = [  # plans that are refused
    ("Wav2Vec2ForCTC", {}, Count.SAMPLES, ()),
    ("Wav2Vec2ForCTC", {"ctc_loss_reduction": "sum"}, Count.ONE, ()),
    ("LlavaForConditionalGeneration", {}, Count.LABELS, ()),  # its last layer for images is unused
    ("CLIPModel", {}, Count.SAMPLES, PLANS),  # a pair's loss depends on those beside it
    ("ViTForImageClassification", {}, Count.SAMPLES, ()),
    ("WhisperForConditionalGeneration", {}, Count.LABELS, ()),
    ("Qwen2_5_VLForConditionalGeneration", {}, Count.LABELS, ()),
]


@pytest.mark.cases_by_default(2)
@pytest.mark.parametrize(("name", "config", "count", "refused"), PROBED)
def test_plans_train_as_a_plain_loop_over_the_whole_batch_or_are_refused(
    groups: Groups,
    name: str,
    config: dict[str, Any],
    count: Count,
    refused: tuple[str, ...],
    tmp_path: Path,
) -> None:
    spec = spec_of(name, tmp_path, config=config)
    expected = Expected(spec)

    rows = list(Parity(groups).of_layouts(name, expected, {plan: COMMON[plan] for plan in PLANS}))

    step = expected.facts.step
    assert step is not None
    assert step.mean_over[0].count is count
    assert bool(step.unused) == (name == "LlavaForConditionalGeneration")
    assert {row.layout: (row.ending, row.detail) for row in rows if row.is_fault} == {}
    assert tuple(row.layout for row in rows if row.ending == "refused") == refused


def test_layers_that_are_dropped_keep_ranks_from_sharding(tmp_path: Path) -> None:
    spec = spec_of("Wav2Vec2ForCTC", tmp_path, config={"layerdrop": 0.3, "mask_time_prob": 0.5})
    facts = with_function_findings(prepare(spec), spec.model, spec.train)
    cpu = ClusterFacts(device="cpu", slots=2, memory_limit_bytes=None)
    context = RuleContext(spec=spec, model=facts, cluster=cpu)

    assert facts.target_rule == TargetRule(count=Count.SAMPLES)
    assert facts.batch_difference == 0
    assert "uses wav2vec2.encoder" in str(refusal(a_plan(zero_stage=3), context))
    assert refusal(a_plan(), context) is None


def test_sound_whose_frames_are_hidden_and_layers_dropped_is_traced_whole(tmp_path: Path) -> None:
    spec = spec_of("Wav2Vec2ForCTC", tmp_path)
    changes = {"layerdrop": 0.9, "mask_time_prob": 0.5, "mask_time_length": 2}
    model = spec.model.model_copy(update={"config": changes})
    spec = spec.model_copy(update={"model": model})

    (variant,) = trace(spec, [VariantKey("sdpa", "cast", "none")], cache=tmp_path).variants

    assert sum(len(kind.indices) for kind in variant.blocks) == 4  # two of them convolutions
    assert all(kind.part.forward.matmuls for kind in variant.blocks)


def test_a_sequence_too_short_for_an_image_is_refused(tmp_path: Path) -> None:
    spec = spec_of("LlavaForConditionalGeneration", tmp_path, sequence_length=4)
    with pytest.raises(ModelError, match="sequence_length is 4, but an image alone has 4 tokens"):
        describe(spec.model, spec.train)


def test_shapes_that_the_configuration_does_not_tell_are_asked_for(tmp_path: Path) -> None:
    spec, file = spec_of("LlavaForConditionalGeneration", tmp_path), tmp_path / "config.json"
    file.write_text(file.read_text().replace("llava", "llava_next").replace("LlavaF", "LlavaNextF"))
    with pytest.raises(ModelError, match=r"image_sizes.*model: mymodel:build"):
        describe(spec.model, spec.train)


def test_text_is_no_data_of_such_a_task(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="data is text, and task image-classification"):
        prepare(spec_of("ViTForImageClassification", tmp_path, lengths={8: 1}))
