"""Small models of transformers with heads and batches that people write functions for, by name."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY, WIDTH, SAMPLES = 40, 16, 48
Make = Callable[[tuple[int, ...]], dict[str, Any]]
_SHAPE = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2}
_TEXT: Mapping[str, Any] = {
    **_SHAPE,
    **{"vocab_size": VOCABULARY, "intermediate_size": 32, "max_position_embeddings": 32},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.2},
}
_DRY = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_BERT: Mapping[str, Any] = _TEXT | _DRY
_EXPERTS: Mapping[str, Any] = {
    **_TEXT,
    **{"num_key_value_heads": 2, "num_experts_per_tok": 2, "output_router_logits": True},
    **{"num_local_experts": 4, "num_experts": 4, "moe_intermediate_size": 16},
    **{"shared_expert_intermediate_size": 16, "router_aux_loss_coef": 0.1},
}
_OPT: Mapping[str, Any] = {**_TEXT, "ffn_dim": 32, "dropout": 0.0}
_T5: Mapping[str, Any] = {
    **{"vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": 8, "d_ff": 32, "num_layers": 2},
    **{"num_heads": 2, "dropout_rate": 0.0, "decoder_start_token_id": 0, "pad_token_id": 0},
}
_SPEECH: Mapping[str, Any] = {
    **{**_TEXT, "conv_dim": (8, 8), "conv_stride": (5, 4), "conv_kernel": (10, 4)},
    **{"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "hidden_dropout": 0.0},
    **{"attention_dropout": 0.0, "activation_dropout": 0.0, "final_dropout": 0.0},
    **{"layerdrop": 0.0, "mask_time_prob": 0.0, "ctc_loss_reduction": "mean"},
}
_IMAGE: Mapping[str, Any] = {**_SHAPE, **_DRY, "intermediate_size": 32}
_IMAGE |= {"image_size": 16, "patch_size": 8, "initializer_range": 0.2, "num_labels": 3}
_TOWERS: Mapping[str, Any] = {"text_config": {**_TEXT}, "vision_config": {**_IMAGE}}
_TOWERS |= {"projection_dim": 8}
_STAGES = {"hidden_sizes": [8, 16], "depths": [1, 1], "embedding_size": 8, "num_labels": 3}
_SEVERAL = {"num_labels": 3, "problem_type": "multi_label_classification"}
_MASKED = {"mask_time_prob": 0.3, "mask_time_length": 2, "layerdrop": 0.3}


def _row(number: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(number)
    return torch.randint(3, VOCABULARY, (5 + 3 * number % 8,), generator=draw)


def _padded(rows: list[torch.Tensor], value: int = 0) -> torch.Tensor:
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)


def text(numbers: tuple[int, ...]) -> dict[str, Any]:
    """Makes rows of token ids of several lengths, padded."""
    ids = _padded([_row(number) for number in numbers])
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}


def tokens(numbers: tuple[int, ...]) -> dict[str, Any]:
    """Makes `text` whose labels are its tokens, without the first of some rows."""
    made = text(numbers)
    labels = torch.where(made["input_ids"] > 0, made["input_ids"], -100)
    labels[torch.tensor(numbers) % 3 == 0, :2] = -100
    return {**made, "labels": labels}


def images(numbers: tuple[int, ...]) -> dict[str, Any]:
    """Makes images of 16 times 16."""
    draws = [torch.Generator().manual_seed(number) for number in numbers]
    drawn = [torch.randn(3, 16, 16, generator=draw) for draw in draws]
    return {"pixel_values": torch.stack(drawn)}


def _labelled(make: Make, label: Callable[[torch.Tensor], Any], key: str = "labels") -> Make:
    """Returns a batch maker with a label for each sample, by its number."""
    return lambda numbers: {**make(numbers), key: label(torch.tensor(numbers))}


_pictured = _labelled(images, lambda number: number % 3)
_numbered = _labelled(text, lambda number: number / 9)
_several = _labelled(text, lambda number: (number[:, None] % torch.tensor([2, 3, 5]) == 0).float())
_followed = _labelled(tokens, lambda number: number % 2, "next_sentence_label")


def _spans(numbers: tuple[int, ...]) -> dict[str, Any]:
    # 99: no answer in this text
    ends = torch.tensor([99 if number % 4 == 1 else 3 for number in numbers])
    return {**text(numbers), "start_positions": torch.tensor(numbers) % 3, "end_positions": ends}


def _speech(numbers: tuple[int, ...]) -> dict[str, Any]:
    draws = [torch.Generator().manual_seed(number) for number in numbers]
    waves = torch.stack([torch.randn(400, generator=draw) for draw in draws])
    return {"input_values": waves, "labels": _padded([_row(n)[:5] for n in numbers], -100)}


def _translated(numbers: tuple[int, ...]) -> dict[str, Any]:
    return {**text(numbers), "labels": _padded([_row(number + 5) for number in numbers], -100)}


def _pairs(numbers: tuple[int, ...]) -> dict[str, Any]:
    """Makes preferred and rejected answers, one behind the other."""
    return tokens(tuple(one for number in numbers for one in (number, number + 7)))


def _both(numbers: tuple[int, ...]) -> dict[str, Any]:
    return {**text(numbers), **images(numbers), "return_loss": True}


# by name: batch maker, class, fields of its configuration
MODELS: dict[str, tuple[Make, str, Mapping[str, Any]]] = {
    "opt": (tokens, "OPTForCausalLM", _OPT),
    "opt, layer drop": (tokens, "OPTForCausalLM", {**_OPT, "layerdrop": 0.5}),
    "mamba": (tokens, "MambaForCausalLM", {**_TEXT, "state_size": 4}),
    "t5": (_translated, "T5ForConditionalGeneration", _T5),
    "albert": (tokens, "AlbertForMaskedLM", {**_BERT, "embedding_size": 8}),
    "mixtral, balanced": (tokens, "MixtralForCausalLM", _EXPERTS),
    "qwen2-moe, balanced": (tokens, "Qwen2MoeForCausalLM", _EXPERTS),
    "bert, tokens": (tokens, "BertForTokenClassification", {**_BERT, "num_labels": VOCABULARY}),
    "bert, spans": (_spans, "BertForQuestionAnswering", _BERT),
    "bert, next sentence": (_followed, "BertForPreTraining", _BERT),
    "bert, number": (_numbered, "BertForSequenceClassification", {**_BERT, "num_labels": 1}),
    "bert, several labels": (_several, "BertForSequenceClassification", {**_BERT, **_SEVERAL}),
    "wav2vec2, ctc": (_speech, "Wav2Vec2ForCTC", _SPEECH),
    "wav2vec2, masked": (_speech, "Wav2Vec2ForCTC", {**_SPEECH, **_MASKED}),
    "hubert, sum": (_speech, "HubertForCTC", {**_SPEECH, "ctc_loss_reduction": "sum"}),
    "clip": (_both, "CLIPModel", _TOWERS),
    "vit": (_pictured, "ViTForImageClassification", _IMAGE),
    "resnet": (_pictured, "ResNetForImageClassification", _STAGES),
}


def _answer_scores(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    labels = batch["labels"][:, 1:]
    found = logits[:, :-1].log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return (found * (labels >= 0)).sum(1)


class Preferring(nn.Module):
    """Direct preference optimization: a policy, and its frozen reference."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.policy, self.reference = model, copy.deepcopy(model).requires_grad_(False)

    def forward(self, **batch: torch.Tensor) -> Any:
        with torch.no_grad():
            before = _answer_scores(self.reference, batch)
        gains = _answer_scores(self.policy, batch) - before
        return -functional.logsigmoid(0.1 * (gains[::2] - gains[1::2])).mean()


def _adapted(model: nn.Module) -> Any:
    adapters = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return get_peft_model(model, adapters)  # type: ignore[arg-type]


AROUND_LLAMA: dict[str, tuple[Callable[[nn.Module], nn.Module], Make]] = {
    "preferences": (Preferring, _pairs),
    "adapters": (_adapted, tokens),
}


def make(name: str) -> tuple[nn.Module, Make]:
    """Returns a model of `MODELS`, or one around a Llama, with its batch maker."""
    around, batch = AROUND_LLAMA.get(name, (None, tokens))
    if around is not None:
        return around(LlamaForCausalLM(LlamaConfig(**_TEXT, num_key_value_heads=2))), batch
    batch, kind, fields = MODELS[name]
    model_class = getattr(transformers, kind)
    return model_class(model_class.config_class(**fields)), batch
