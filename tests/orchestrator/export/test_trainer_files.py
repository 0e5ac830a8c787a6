"""Files for other trainers: read back, held to their keys, and read by their own parsers."""

import ast
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.export.bundle import Bundle, write_bundle
from orchestrator.export.formats import export_bundle
from orchestrator.export.trainer_environment import check_file
from orchestrator.export.verify import Finding
from search_spaces.errors import UserError
from search_spaces.plan import DEFAULTS, Plan
from search_spaces.settings.export_manifest import ExportManifest
from search_spaces.specification.load import parse_spec
from search_spaces.specification.trainer_configs.conversion import convert
from search_spaces.specification.trainer_configs.document import flattened
from tests.orchestrator.cli.commands import command
from tests.orchestrator.export.folders import source_of
from tests.search_spaces.values import a_model, a_spec
from tests.workers.values import a_plan

KEYS = json.loads(Path(__file__).with_name("trainer_keys.json").read_text())
TRAIN = {
    **{"global_batch": 8, "sequence_length": 512, "precision": "bf16", "learning_rate": 0.002},
    **{"warmup_steps": 2, "total_steps": 60, "grad_clip": 0.5, "seed": 7},
    "weight_decay": 0.1,
}
FILES = ("axolotl", "llama-factory", "trl", "ms-swift")
PIP_DOWNLOAD = (sys.executable, "-m", "pip", "download", "--no-deps", "--quiet")
NO_DATA = ("torchtitan", "megatron-bridge")
SECTIONS = ("verl", "megatron-bridge")
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
    "verl": ({"zero_stage": 3, "checkpoint_ratio": 1.0, **HOST}, {}, ("verl",)),
    "verl 2": (
        {"zero_stage": 2, "loader_workers": 3, "optimizer": "adamw_foreach"},
        {"grad_clip": None, "betas": (0.8, 0.9), "eps": 1e-6},
        ("verl",),
    ),
    "titan": ({"zero_stage": 3, "data": 4, "replicas": 2, "compile": True, **HOST}, {}, ()),
    "titan stages": (
        {"zero_stage": 2, "pipeline": 2, "tensor": 2, "sequence_parallel": True}
        | {"checkpoint_ratio": 1.0, "checkpoint_mode": "selective", "optimizer": "adamw_foreach"},
        {"schedule": "constant", "grad_clip": None},
        (),
    ),
    "bridge": (
        {"tensor": 2, "sequence_parallel": True, "pipeline": 2, "checkpoint_ratio": 1.0}
        | {"loader_workers": 3},
        {"schedule": "constant", "grad_clip": None},
        ("megatron-bridge",),
    ),
    "bridge zero": (
        {"engine": "deepspeed", "zero_stage": 1, "offload_optimizer": "cpu", "pin_memory": True}
        | {"overlap": False},
        {"betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.0},
        ("megatron-bridge",),
    ),
}
ALL = [(form, case) for case, (_, _, forms) in CASES.items() for form in forms or ("torchtitan",)]


def exported(form: str, case: str, folder: Path) -> tuple[Bundle, Plan, dict[str, Any]]:
    """Writes the export of a case; returns it with its plan, and what it trains."""
    knobs, train, _ = CASES[case]
    plan = a_plan(**{"precision": "bf16"} | knobs)
    data = folder / "texts.jsonl"
    data.write_text('{"text": "a"}\n')
    decay = "all" if form in ("torchtitan", "verl") else "stock"
    schedule = "cosine" if form == "verl" else "linear"
    spec = a_spec(
        model={"name": "llama-3-8b"},
        data={"files": [str(data)], "field": "text"} if form not in NO_DATA else {},
        train={**TRAIN, "decay": decay, "schedule": schedule, **train},
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
    names_ranks = form in ("torchtitan", *SECTIONS) or plan.engine == "deepspeed"
    ranks = plan.data if names_ranks else 1
    samples = plan.micro_batch * plan.accumulation * ranks
    assert taken == train | {"global_batch": samples, "precision": plan.precision}


@pytest.mark.parametrize(("form", "case"), ALL)
def test_a_trainer_has_each_key_of_its_file(form: str, case: str, tmp_path: Path) -> None:
    files = exported(form, case, tmp_path)[0].files
    if form != "torchtitan":
        (text,) = (text for name, text in files.items() if name.endswith(".yaml"))
        tree = yaml.safe_load(text)
        names = {name for name, _ in flattened(tree)} if form in SECTIONS else tree.keys()
        # these take any field
        free = ("model.override_config.", "optim.override_optimizer_config.", "env_vars.")
        unknown = {name for name in names if name not in KEYS[form] and not name.startswith(free)}
        assert unknown == ({"defaults"} if form == "verl" else set())  # Hydra's, which it extends
        return
    calls = [n for n in ast.walk(ast.parse(files["titan_config.py"])) if isinstance(n, ast.Call)]
    named = {ast.unparse(call.func): {k.arg for k in call.keywords} for call in calls}
    assert [name for name, keys in KEYS[form].items() if named[name] - {*keys}] == []


@pytest.mark.parametrize(
    ("form", "knobs", "train", "words"),
    [
        ("ms-swift", {"batching": "packed"}, {"decay": "stock"}, "batching is packed"),
        (
            "ms-swift",
            {"checkpoint_ratio": 0.5},
            {"decay": "stock"},
            "recomputes all blocks or none",
        ),
        ("ms-swift", {}, {"decay": "all"}, "train.decay is all"),
        ("verl", {"zero_stage": 0}, {"decay": "all"}, "zero_stage is 0"),
        ("verl", {"zero_stage": 3, "engine": "deepspeed"}, {"decay": "all"}, "engine is deepspeed"),
        (
            "verl",
            {"zero_stage": 3},
            {"decay": "stock"},
            "train.decay is stock, and verl decays all",
        ),
        ("verl", {"zero_stage": 3}, {"decay": "all", "schedule": "linear"}, "schedule is linear"),
        ("verl", {"zero_stage": 3}, ADAPTERS, "train.method is lora"),
        ("megatron-bridge", {"zero_stage": 3}, {"decay": "stock"}, "zero_stage is 3"),
        ("megatron-bridge", {}, {"decay": "all"}, "Megatron-Bridge leaves biases and norms"),
        ("megatron-bridge", {}, ADAPTERS, "train.method is lora"),
        (
            "megatron-bridge",
            {"engine": "deepspeed", "zero_stage": 1, "offload_optimizer": "cpu"},
            {"decay": "stock"},
            "all weights decay",
        ),
        ("megatron-bridge", {"pipeline": 8, "data": 1}, {"decay": "all"}, "does not divide"),
    ],
)
def test_a_plan_that_a_file_cannot_express_is_refused_with_formats_that_can(
    form: str, knobs: dict[str, Any], train: dict[str, Any], words: str
) -> None:
    spec = a_spec(model={"name": "llama-3-8b"}, train={**TRAIN, **train}, trainer=form)
    model = replace(a_model(), task="causal-lm", base=spec.train.lora.base or "bf16")

    with pytest.raises(UserError, match=words) as refused:
        export_bundle(source_of(a_plan(**{"precision": "bf16"} | knobs), spec, model, "cuda"))

    assert re.search(r"; [a-z, -]+ can$", str(refused.value))


def findings_on(folder: Path, *, install: bool = False) -> tuple[list[Finding], Finding]:
    """Returns what verification says to the keys of a folder's file, and what its parser says."""
    *keys, parsed = check_file(ExportManifest.read(folder), folder, print, install=install)
    return keys, parsed


@pytest.mark.parametrize("form", ["ms-swift", "verl"])
def test_verify_reads_a_file_by_our_table_and_says_how_to_get_its_parser(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bundle = exported(form, "fsdp" if form == "ms-swift" else "verl", tmp_path)[0]
    out = tmp_path / "out"

    code, words = command(capsys, "verify", str(out))

    assert code == 1
    assert "DIFFERS" not in words
    (name,) = (name for name in bundle.files if name.endswith(".yaml"))
    assert re.search(rf"not verified: {name} was parsed only by Plimsoll; --install gets", words)

    text = (out / name).read_text()
    (out / name).write_text(text.replace("0.002", "0.004"))
    code, words = command(capsys, "verify", str(out))
    assert code == 1
    assert words.endswith("differs: train.learning_rate")


def test_verify_says_that_the_parser_of_megatron_bridge_cannot_be_installed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, *_ = exported("megatron-bridge", "bridge", tmp_path)
    compile(bundle.files["pretrain.py"], "pretrain.py", "exec")

    code, words = command(capsys, "verify", str(tmp_path / "out"))
    assert code == 1
    assert "DIFFERS" not in words
    assert "megatron_bridge.yaml was parsed only by Plimsoll: Megatron-Bridge needs CUDA" in words

    code, words = command(capsys, "verify", str(tmp_path / "out"), "--install")
    assert code == 2
    assert "megatron-bridge cannot be installed: Megatron-Bridge needs CUDA" in words


def test_verify_lets_an_installed_parser_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    exported("axolotl", "ddp", tmp_path)
    out, _ = tmp_path / "out", monkeypatch.chdir(tmp_path)
    (packages,) = re.findall(r"into (\S+)\)", findings_on(out)[1].reason)
    schemas = Path(packages, "axolotl", "utils", "schemas")
    schemas.mkdir(parents=True)
    schema = "from pydantic import BaseModel, create_model\n"
    fields = {**yaml.safe_load((out / "axolotl.yaml").read_text())}
    model = f"AxolotlInputConfig = create_model('A', **{{n: (object, None) for n in {[*fields]}}})"
    (schemas / "config.py").write_text(schema + model)

    code, words = command(capsys, "verify", str(out))

    assert code == 0, words
    assert words.endswith("accepts the file, which means the plan; it was not run")

    with (out / "axolotl.yaml").open("a") as file:
        file.write("micro_batch_sise: 2\n")
    code, words = command(capsys, "verify", str(out))
    assert code == 1
    assert "it has no key micro_batch_sise" in words
    assert words.endswith("differs: own parser")


def test_only_the_files_of_other_trainers_have_a_parser_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = source_of(a_plan(), a_spec(), a_model())
    write_bundle(export_bundle(source, "torchrun"), source, tmp_path / "out")

    code, words = command(capsys, "verify", str(tmp_path / "out"), "--install")

    assert code == 2
    assert "--install is for axolotl, llama-factory, ms-swift, torchtitan, trl, verl: " in words


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("form", "case", "edit"),
    [
        ("axolotl", "fsdp", "sequence_lenn: 512"),
        ("llama-factory", "lora", "lora_rankk: 4"),
        ("trl", "zero", "max_lengthh: 512"),
        ("ms-swift", "fsdp", "max_lengthh: 512"),
        ("ms-swift", "qlora", "lora_rankk: 4"),
        ("verl", "verl 2", "checkpoint: {save_contentss: [model]}"),
        ("torchtitan", "titan stages", "no_such_name"),
    ],
)
def test_a_trainers_own_parser_takes_its_file_and_refuses_another_key(
    form: str, case: str, edit: str, tmp_path: Path
) -> None:
    """Installs the parser as a user does, once; skipped only if not even pip can be downloaded."""
    bundle, _, _ = exported(form, case, tmp_path)
    out = tmp_path / "out"
    try:
        keys, parsed = findings_on(out, install=True)
    except UserError as error:
        words = [*PIP_DOWNLOAD, "--dest", str(tmp_path), "pip"]
        if "cannot be installed" in str(error) and subprocess.run(words, check=False).returncode:
            pytest.skip(f"there is no network: {error}")
        raise

    assert [finding for finding in (*keys, parsed) if not finding.passed] == []

    (name,) = (name for name in bundle.files if name.endswith((".yaml", "config.py")))
    with (out / name).open("a") as file:
        file.write(f"\n{edit}\n")
    assert findings_on(out)[1].passed is False
