"""Files for axolotl, LLaMA-Factory, trl and torchtitan: read back, and held to their keys."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.export.bundle import Bundle, write_bundle
from orchestrator.export.formats import export_bundle
from search_spaces.plan import DEFAULTS, Plan
from search_spaces.specification.load import parse_spec
from search_spaces.specification.trainer_configs.conversion import convert
from search_spaces.specification.trainer_configs.document import flattened
from tests.orchestrator.export.folders import source_of
from tests.search_spaces.values import a_model, a_spec
from tests.workers.values import a_plan

KEYS = json.loads(Path(__file__).with_name("trainer_keys.json").read_text())
TRAIN = {
    **{"global_batch": 8, "sequence_length": 512, "precision": "bf16", "learning_rate": 0.002},
    **{"schedule": "linear", "warmup_steps": 2, "total_steps": 60, "grad_clip": 0.5, "seed": 7},
    "weight_decay": 0.1,
}
FILES = ("axolotl", "llama-factory", "trl")
HOST = {"offload_optimizer": "cpu", "offload_parameters": "cpu", "pin_memory": True}
ADAPTERS: dict[str, Any] = {"method": "lora", "lora": {"rank": 4, "target_modules": ["q_proj"]}}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "ddp": ({"bucket_mib": 50, "batching": "grouped", "loader_workers": 3}, {}, FILES),
    "fsdp": ({"zero_stage": 3, "checkpoint_ratio": 1.0, **HOST}, {"schedule": "constant"}, FILES),
    "fsdp 2": ({"zero_stage": 2, "attention": "flash_attention_2", "compile": True}, {}, FILES),
    "zero": ({"engine": "deepspeed", "zero_stage": 1}, {"grad_clip": None}, FILES),
    "8 bit": ({"data": 1, "precision": "fp16", "optimizer": "adamw_8bit"}, {}, FILES),
    "lora": ({"data": 1, "precision": "fp32"}, ADAPTERS, FILES),
    "qlora": ({"data": 1}, {"method": "lora", "lora": {"rank": 4, "base": "nf4"}}, FILES),
    "titan": ({"zero_stage": 3, "data": 4, "replicas": 2, "compile": True, **HOST}, {}, ()),
    "titan stages": (
        {"zero_stage": 2, "pipeline": 2, "tensor": 2, "sequence_parallel": True}
        | {"checkpoint_ratio": 1.0, "checkpoint_mode": "selective", "optimizer": "adamw_foreach"},
        {"schedule": "constant", "grad_clip": None},
        (),
    ),
}
ALL = [(form, case) for case, (_, _, forms) in CASES.items() for form in forms or ("torchtitan",)]


def exported(form: str, case: str, folder: Path) -> tuple[Bundle, Plan, dict[str, Any]]:
    """Writes the export of a case; returns it with its plan, and what it trains."""
    knobs, train, _ = CASES[case]
    plan = a_plan(**{"precision": "bf16"} | knobs)
    data = folder / "texts.jsonl"
    data.write_text('{"text": "a"}\n')
    decay = "all" if form == "torchtitan" else "stock"
    spec = a_spec(
        model={"name": "llama-3-8b"},
        data={"files": [str(data)], "field": "text"} if form != "torchtitan" else {},
        train={**TRAIN, "decay": decay, **train},
        trainer=form,
    )
    model = replace(a_model(), task="causal-lm", base=spec.train.lora.base or "bf16")
    source = source_of(plan, spec, model, "cuda")
    bundle = export_bundle(source)
    write_bundle(bundle, source, folder / "out")
    assert bundle.command_from(folder / "out").startswith(f"cd {folder}/out && ")
    return bundle, plan, dict(flattened(spec.train.model_dump()))


@pytest.mark.parametrize(("form", "case"), ALL)
def test_init_takes_an_exported_file_as_the_plan(
    form: str, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, plan, train = exported(form, case, tmp_path)
    monkeypatch.chdir(tmp_path / "out")
    (name,) = (name for name in bundle.files if name.endswith((".yaml", "config.py")))
    conversion = convert(name)
    spec = parse_spec(conversion.text, source=name)

    assert conversion.trainer.lower() == form
    assert {k: v for k, v in spec.baseline.items() if getattr(plan, k) != v} == {}
    knobs = {"micro_batch", *CASES[case][0]} - {"data", "precision", "pin_memory"}
    today = {**DEFAULTS, **spec.baseline}
    assert {knob: today[knob] for knob in knobs} == {knob: getattr(plan, knob) for knob in knobs}
    taken = dict(flattened(spec.train.model_dump()))
    whole = form == "torchtitan" or plan.engine == "deepspeed"  # others' files name no ranks
    ranks = plan.data if whole else 1
    samples = plan.micro_batch * plan.accumulation * ranks
    assert taken == train | {"global_batch": samples, "precision": plan.precision}


@pytest.mark.parametrize(("form", "case"), ALL)
def test_a_trainer_has_each_key_of_its_file(form: str, case: str, tmp_path: Path) -> None:
    files = exported(form, case, tmp_path)[0].files
    if form != "torchtitan":
        (text,) = (text for name, text in files.items() if name.endswith(".yaml"))
        assert yaml.safe_load(text).keys() <= {*KEYS[form]}
        return
    calls = [n for n in ast.walk(ast.parse(files["titan_config.py"])) if isinstance(n, ast.Call)]
    named = {ast.unparse(call.func): {k.arg for k in call.keywords} for call in calls}
    assert [name for name, keys in KEYS[form].items() if named[name] - {*keys}] == []
