"""Architectures whose plans are compared, as small models with random weights."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers.models.auto import configuration_auto

from search_spaces.specification.schema import SweepSpec
from workers.models.capabilities import small_fields

GLOBAL_BATCH = 8
STEPS = 6
# What a model cannot be built without; smaller weights where steps amplify the last digit of the
# others', by attention that is one-hot or by many ReLUs; and M2M-100's own start of the decoder,
# since the hidden state of its padding is zero, which its first norm amplifies.
_OWN_FIELDS: Mapping[str, Mapping[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 2, "n_routed_experts": 4, "initializer_range": 0.05},
    "deepseek_v3": {"initializer_range": 0.05},
    "gpt_neo": {
        **{"attention_types": [[["global", "local"], 1]], "num_layers": 2},
        "attention_layers": ["global", "local"],
    },
    "nemotron": {"num_key_value_heads": 2},
    "m2m_100": {"decoder_start_token_id": 1, "init_std": 0.1},
}

CAUSAL = (
    *("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2"),
    *("gemma3_text", "phi", "phi3", "gpt2", "gpt_neo", "gpt_neox", "gptj", "gpt_bigcode", "opt"),
    *("bloom", "falcon", "mpt", "stablelm", "starcoder2", "olmo", "olmo2", "olmoe", "cohere"),
    *("cohere2", "granite", "granitemoe", "glm", "glm4", "smollm3", "nemotron", "persimmon"),
    *("codegen", "xglm", "biogpt", "ctrl", "rwkv", "mamba", "doge", "deepseek_v2", "deepseek_v3"),
    *("gpt_oss", "helium", "exaone4", "arcee", "ernie4_5", "seed_oss"),
)
MASKED = (
    *("bert", "roberta", "distilbert", "electra", "albert", "camembert", "xlm-roberta", "mpnet"),
    *("deberta-v2", "modernbert", "roformer", "nystromformer", "squeezebert", "fnet", "convbert"),
    *("funnel", "esm"),
)
SEQ2SEQ = (
    *("t5", "mt5", "umt5", "bart", "mbart", "pegasus", "marian", "blenderbot", "plbart", "m2m_100"),
    *("led", "longt5", "prophetnet"),
)
CLASSIFIED = ("bert", "roberta", "distilbert", "deberta-v2", "modernbert", "llama", "gpt2", "xlnet")
MODELS: tuple[tuple[str, str], ...] = (
    *(("causal-lm", name) for name in CAUSAL),
    *(("masked-lm", name) for name in MASKED),
    *(("seq2seq", name) for name in SEQ2SEQ),
    *(("sequence-classification", name) for name in CLASSIFIED),
)


def model_folder(model_type: str, folder: Path) -> Path:
    """Writes the configuration of a small model without dropout, and returns its folder."""
    config = configuration_auto.CONFIG_MAPPING[model_type]
    whole = json.loads(config().to_json_string(use_diff=False))
    fields = {
        name: 0.0 if isinstance(value, float) and "drop" in name else value
        for name, value in small_fields(whole, config).items()
    }
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        fields[name] = 0 if "start" in name or name.startswith("pad") else 1
    fields |= _OWN_FIELDS.get(model_type, {})
    place = folder / model_type
    place.mkdir(exist_ok=True)
    (place / "config.json").write_text(json.dumps(fields | {"model_type": model_type}))
    return place


def spec_of(task: str, folder: Path) -> SweepSpec:
    """Returns a specification of a few steps on samples of three lengths, not clipped."""
    return SweepSpec.model_validate(
        {
            "model": {"name": str(folder), "task": task},
            "data": {"lengths": {5: 1, 12: 2, 24: 1}},
            "cluster": {"device": "cpu", "nvme_folder": str(folder.parent)},
            "train": {
                "global_batch": GLOBAL_BATCH,
                "sequence_length": 24,
                "precision": "fp32",
                "learning_rate": 1e-3,
            },
            "objective": {"max_steps": STEPS, "interval": 1e-9, "max_seconds": 600},
            # of models whose loss depends on it, those of one sample equal the reference
            "space": {"micro_batch": [1]},
        }
    )


def function_spec(function: str, **config: Any) -> SweepSpec:
    """Returns the same for a function, with its arguments; its module is `odd_models` if none."""
    spec = spec_of("causal-lm", Path("none"))
    name = function if ":" in function else f"odd_models:{function}"
    model = {"name": f"tests.workers.{name}", "config": config}
    return SweepSpec.model_validate(spec.model_dump() | {"model": model, "space": {}})


def with_micro_batch(spec: SweepSpec) -> SweepSpec:
    """Returns the specification with micro-batches of 2, and others to compare with them."""
    given = spec.model_dump() | {"space": {"micro_batch": [1, 2, 4, 8]}}
    return SweepSpec.model_validate(given | {"train": given["train"] | {"micro_batch": 2}})


def clipped(spec: SweepSpec, norm: float) -> SweepSpec:
    """Returns the specification with gradients clipped to a norm."""
    return spec.model_copy(update={"train": spec.train.model_copy(update={"grad_clip": norm})})
