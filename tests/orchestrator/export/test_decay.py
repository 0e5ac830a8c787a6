"""Exported scripts decay the weights that the measured plan did, or the format refuses."""

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, Trainer

from orchestrator.export.bundle import write_bundle
from orchestrator.export.formats import export_bundle
from search_spaces.settings.trainer_refusals import decay_refusals
from tests.orchestrator.export.folders import STEPS, run_folder, taken_of
from tests.workers.test_decay import TOLERANCE, plain_losses_with_the_longest, spec_with
from tests.workers.values import a_plan
from workers.plain_torch.optimizers import make_optimizer

ZERO: dict[str, Any] = {"engine": "deepspeed", "zero_stage": 2}
STOCK: dict[str, Any] = {"decay": "stock", "weight_decay": 0.3}


def optimizer_of(script: str, module: torch.nn.Module) -> torch.optim.Optimizer:
    """Returns the optimizer that a script makes, with the settings at its top."""
    values = [one for one in ast.parse(script).body if isinstance(one, ast.Assign)]
    (settings,) = [one.value for one in values if ast.unparse(one.targets[0]) == "OPTIMIZER"]
    return make_optimizer(module, **ast.literal_eval(settings))


@pytest.mark.parametrize(
    ("name", "knobs"),
    [("torchrun", {}), ("accelerate", {}), ("ray-train", {}), ("deepspeed", ZERO)],
)
def test_scripts_leave_out_what_the_trainer_of_transformers_does(
    name: str, knobs: dict[str, Any]
) -> None:
    script = export_bundle(taken_of(a_plan(**knobs), **STOCK), name).files["train.py"]
    config = AutoConfig.for_model("gpt2", n_embd=32, n_layer=2, n_head=4, vocab_size=64)
    module = AutoModelForCausalLM.from_config(config)

    decaying, others = optimizer_of(script, module).param_groups

    weights = dict(module.named_parameters())
    expected = {
        id(weights[each])
        for each in Trainer.get_decay_parameter_names(None, module)  # type: ignore[arg-type]
        if each in weights
    }
    assert {id(weight) for weight in decaying["params"]} == expected
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.3, 0.0)
    assert len(decaying["params"]) + len(others["params"]) == len(weights)


def test_trainers_own_choice_is_kept_where_it_was_measured() -> None:
    def script(**train: Any) -> str:
        return export_bundle(taken_of(a_plan(data=1), **train), "hf-trainer").files["train.py"]

    assert "get_decay_parameter_names" not in script(**STOCK)
    assert "get_decay_parameter_names" in script(weight_decay=0.3)


def test_a_stock_trainer_is_refused_where_all_weights_decayed() -> None:
    def reasons(**train: Any) -> list[str]:
        source = taken_of(a_plan(), **train)
        return list(decay_refusals(source.plan, source.spec.train, stock=True))

    assert reasons() == []  # nothing decays
    assert reasons(**STOCK) == []
    (reason,) = reasons(weight_decay=0.3)
    assert "leaves biases and norms without decay" in reason


@pytest.mark.slow
@pytest.mark.thorough
def test_trainer_decays_as_measured(tmp_path: Path) -> None:
    spec = spec_with("stock")
    source = taken_of(a_plan(**ZERO), spec=spec)
    write_bundle(export_bundle(source, "hf-trainer"), source, tmp_path / "out")

    lines = run_folder(tmp_path / "out", steps=1 + STEPS)

    losses = [line["loss"] for line in lines]
    expected = plain_losses_with_the_longest("stock")[: 1 + STEPS]
    assert losses == pytest.approx(expected, rel=TOLERANCE)
