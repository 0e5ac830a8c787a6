"""Adapters on frozen weights in 16, 8 and 4 bits train as the loop that users of peft write."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from search_spaces.plan import Plan
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Measured, TrialRequest
from tests.workers.launch import Groups
from tests.workers.test_lora_training import plan_id
from tests.workers.test_same_training import MORE, WORST_STEP, _accumulate
from tests.workers.values import a_plan, a_spec
from workers.models.load import build_whole

STEPS = 6
SAVED = ("model.norm", "embed_tokens")
SAME, ROUNDED = 1e-5, 5e-3  # of the same products in bf16, and of those of other shapes
ALIKE = {"micro_batch": 1, "data": 1, "attention": "eager", "precision": "bf16"}
PADDED = {"micro_batch": 2, "precision": "bf16"}


def lora_spec(base: str, **lora: Any) -> SweepSpec:
    """Returns a spec of adapters of rank 4; `lora` adds keys."""
    train = {"method": "lora", "precision": "bf16", "learning_rate": 3e-3}
    return a_spec(
        train=train | {"lora": {"rank": 4, "base": base} | lora},
        objective={"max_steps": STEPS, "max_seconds": 600},
    )


@cache
def peft_losses(base: str, folder: Path) -> list[float]:
    """Losses of a loop over samples: transformers quantizes, peft adapts, autocast computes."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    spec = lora_spec(base, modules_to_save=SAVED)
    full = spec.train.model_copy(update={"method": "full"})
    build_whole(spec.model, full, attention="eager").module.to(torch.bfloat16).save_pretrained(
        folder
    )
    quantization = {
        "int8": BitsAndBytesConfig(load_in_8bit=True),
        "nf4": BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        ),
    }.get(base)
    module = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation="eager", quantization_config=quantization
    )
    config = LoraConfig(
        r=4, lora_alpha=16, target_modules="all-linear", modules_to_save=list(SAVED)
    )
    adapted = get_peft_model(module, config)
    ours = build_whole(spec.model, spec.train, attention="eager").module
    draws = {name: one for name, one in ours.named_parameters() if one.requires_grad}
    for name, weight in adapted.named_parameters():
        if weight.requires_grad:
            weight.data = draws.pop(name.removeprefix("base_model.model.")).detach().clone()
    assert not draws
    return _trained(adapted.train())


def _trained(module: torch.nn.Module) -> list[float]:
    def forward(**inputs: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            outputs = module(**inputs)
        outputs.logits = outputs.logits.float()
        return outputs

    trained = [weight for weight in module.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-3, weight_decay=0.0)
    losses = []
    for step in range(WORST_STEP, STEPS):
        losses.append(_accumulate(forward, step))  # type: ignore[arg-type]
        optimizer.step()
        optimizer.zero_grad()
    return losses[1:]


@pytest.mark.parametrize(
    ("base", "plan"),
    [
        ("nf4", a_plan(**ALIKE)),
        ("bf16", a_plan(**PADDED, zero_stage=3, checkpoint_ratio=0.5)),
        *(
            pytest.param(base, plan, marks=MORE)
            for base, plan in (
                ("bf16", a_plan(**ALIKE)),
                ("int8", a_plan(**ALIKE)),
                ("bf16", a_plan(**PADDED)),
                ("bf16", a_plan(**PADDED, engine="deepspeed", zero_stage=3)),
                ("bf16", a_plan(**PADDED, pipeline=2, data=1)),
                ("nf4", a_plan(**PADDED, checkpoint_ratio=1.0)),
                ("nf4", a_plan(**PADDED, engine="deepspeed", zero_stage=2)),
                ("nf4", a_plan(**PADDED, pipeline=2, data=1)),
            )
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else plan_id(value),
)
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")
def test_losses_are_those_of_pefts_loop(
    base: str, plan: Plan, groups: Groups, tmp_path: Path
) -> None:
    spec = lora_spec(base, modules_to_save=SAVED)
    outcome = groups.of(plan.world_size).run(TrialRequest(number=0, plan=plan, spec=spec))

    assert isinstance(outcome, Measured), outcome
    expected = peft_losses(base, tmp_path)
    is_alike = (plan.micro_batch, plan.attention) == (1, "eager")
    assert outcome.losses == pytest.approx(expected, rel=SAME if is_alike else ROUNDED)
    assert expected[-1] != pytest.approx(expected[0], rel=SAME)  # it trains
