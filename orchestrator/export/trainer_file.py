"""Exports for axolotl, LLaMA-Factory, ms-swift, trl and verl: a file of each, and no script.

The keys are those that `plimsoll init --from` reads back: `trainer_configs/trainers.yaml`.
"""

import json
from dataclasses import replace
from typing import Any

import yaml

from orchestrator.export import deepspeed, hf_trainer, scripts
from orchestrator.export.bundle import Bundle
from orchestrator.export.inputs import collect_inputs
from orchestrator.export.source import ExportSource
from search_spaces.plan import Plan
from search_spaces.settings.render import render_environment
from search_spaces.specification.schema import SweepSpec
from search_spaces.specification.trainer_configs.document import flattened, tree_of
from search_spaces.specification.trainer_configs.tables import trainers, write

_FSDP2 = {"fsdp_config.version": 2, "fsdp_config.auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}


def export_axolotl(source: ExportSource) -> Bundle:
    """Returns the configuration of `axolotl train`."""
    spec, name = collect_inputs(source.spec).spec, "axolotl.yaml"
    form = {"ds_type": "json", "type": "completion", "field": _field(spec)}
    keys = {"datasets": [{"path": path, **form} for path in spec.data.files]}
    options = scripts.start_command(source).removeprefix("torchrun ").removesuffix(scripts.SCRIPT)
    command = f"axolotl train {name} --launcher torchrun -- {options.strip()}"
    return _bundle(source, "axolotl", name, command, keys)


def export_llama_factory(source: ExportSource) -> Bundle:
    """Returns the configuration of `llamafactory-cli train`, and its list of data sets."""
    spec, name = collect_inputs(source.spec).spec, "llama_factory.yaml"
    columns = {"columns": {"prompt": _field(spec)}}
    sets = {f"data{n}": {"file_name": path, **columns} for n, path in enumerate(spec.data.files)}
    command, ranks = _on_hosts(source, f"llamafactory-cli train {name}")
    bundle = _bundle(source, "LLaMA-Factory", name, command, {"dataset": ",".join(sets)})
    # without the last one, it sets an allocator of its own
    start = (("FORCE_TORCHRUN", "1"), ranks, ("OPTIM_TORCH", "0"))
    files = {**bundle.files, "dataset_info.json": json.dumps(sets, indent=2) + "\n"}
    return replace(bundle, files=files, environment=(*bundle.environment, *start))


def export_swift(source: ExportSource) -> Bundle:
    """Returns the configuration of `swift pt`."""
    spec, name, base = collect_inputs(source.spec).spec, "swift.yaml", source.model.base
    keys: dict[str, Any] = {
        "torch_dtype": "float32" if base in (None, "fp32") else "bfloat16",
        "dataset": list(spec.data.files),
        "columns": {_field(spec): "response"},
    }
    if base in ("nf4", "int8"):
        keys["quant_method"] = "bnb"
    if spec.train.betas is None:  # its own default is 0.95
        keys["adam_beta2"] = 0.999
    if _is_sharded(source.plan):  # FSDP recomputes, and both would
        keys |= {f"fsdp.{key}": value for key, value in _FSDP2.items()}
        keys["gradient_checkpointing"] = False
    command, ranks = _on_hosts(source, f"swift pt {name}")
    bundle = _bundle(source, "ms-swift", name, command, keys)
    return replace(bundle, environment=(*bundle.environment, ranks))


def export_verl(source: ExportSource) -> Bundle:
    """Returns the configuration of verl's SFT trainer."""
    name, train = "verl_sft.yaml", source.spec.train
    options = scripts.start_command(source).removesuffix(scripts.SCRIPT)
    options += "-m verl.trainer.sft_trainer --config-dir . --config-name"
    keys = {"optim.clip_grad": train.grad_clip or 1e9}
    return _bundle(source, "verl", name, f"{options} {name.removesuffix('.yaml')}", keys)


def export_trl(source: ExportSource) -> Bundle:
    """Returns the configuration of `trl sft`."""
    spec, name = collect_inputs(source.spec).spec, "trl.yaml"
    keys = {
        "datasets": [{"path": "json", "data_files": [path]} for path in spec.data.files],
        "dataset_text_field": _field(spec),
        "dtype": "float32" if source.model.base in (None, "fp32") else "bfloat16",
    }
    options = f"--num_processes {source.plan.world_size}"
    if source.hosts > 1:
        options += f" --num_machines {source.hosts} --machine_rank $HOST_RANK"
        options += f" --main_process_ip {scripts.HEAD} --main_process_port {scripts.PORT}"
    return _bundle(source, "trl", name, f"trl sft --config {name} {options}", keys)


def _on_hosts(source: ExportSource, command: str) -> tuple[str, tuple[str, str]]:
    """Returns a command that starts torchrun by variables, and the one for its ranks."""
    if source.hosts > 1:
        hosts = f"NNODES={source.hosts} NODE_RANK=$HOST_RANK MASTER_ADDR={scripts.HEAD}"
        command = f"{hosts} MASTER_PORT={scripts.PORT} {command}"
    return command, ("NPROC_PER_NODE", str(source.plan.world_size // source.hosts))


def _field(spec: SweepSpec) -> str:
    return spec.data.field if isinstance(spec.data.field, str) else "text"


def _bundle(
    source: ExportSource,
    trainer: str,
    name: str,
    command: str,
    keys: dict[str, Any],
) -> Bundle:
    """Returns the file of a trainer: the keys of its table, and those that no plan decides."""
    plan, files = source.plan, dict[str, str]()
    values = _file_keys(trainer, source)
    if trainer != "verl":
        values |= hf_trainer.moments(source.spec.train)
    if _is_sharded(plan) and trainer not in ("verl", "ms-swift"):  # axolotl checks its own keys
        values |= {"fsdp_version": 2} if trainer == "axolotl" else _FSDP2
    values |= keys
    if plan.engine == "deepspeed":
        values["deepspeed"] = deepspeed.CONFIG
        config = hf_trainer.deepspeed_config(plan, source.model, source.spec, source.device)
        files[deepspeed.CONFIG] = json.dumps(config, indent=2, sort_keys=True) + "\n"
    head = f"# {scripts.quotable_title(source)}\n#\n#     {command}\n"
    kept = {key: value for key, value in values.items() if value not in ([], "")}
    files[name] = head + yaml.safe_dump(tree_of(kept), sort_keys=False)
    return Bundle(
        format=trainer.lower(),
        files=files,
        command=command,
        environment=render_environment(plan, source.device),
        local=False,
    )


def _file_keys(trainer: str, source: ExportSource) -> dict[str, Any]:
    """Returns the keys of a trainer's table that have a meaning for the plan."""
    values, unused = export_values(source), ["fsdp"]
    if _is_sharded(source.plan):
        unused = []
    if source.spec.train.method == "full":
        unused += ["lora_", "load_in_", "target_modules", "quant_"]
    if source.plan.zero_stage or source.plan.engine == "deepspeed" or source.plan.data == 1:
        unused.append("ddp_")
    keys = {
        key: value
        for key, value in write(trainers()[trainer], values).items()
        if not key.startswith(tuple(unused))
    }
    if "lora_alpha" in keys and keys["lora_alpha"].is_integer():
        keys["lora_alpha"] = int(keys["lora_alpha"])
    if keys.get("lora_target_linear"):
        del keys["lora_target_modules"]
    elif keys.get("lora_target_modules") == "all-linear":
        keys["lora_target_modules"] = ["all-linear"]
    if trainer == "LLaMA-Factory":  # its lists are text
        keys |= {key: ",".join(value) for key, value in keys.items() if isinstance(value, list)}
    return keys


def _is_sharded(plan: Plan) -> bool:
    return plan.engine == "torch" and plan.zero_stage > 0


def export_values(source: ExportSource) -> dict[str, Any]:
    """Returns a plan and its training by the keys of a specification, for `write`."""
    plan, spec = source.plan, collect_inputs(source.spec).spec
    values = {f"baseline.{knob}": value for knob, value in plan.as_dict().items()}
    values |= {f"train.{key}": value for key, value in flattened(spec.train.model_dump())}
    return values | {
        "model.name": spec.model.name,
        "train.precision": plan.precision,
        "train.lora.base": source.model.base,
        "_micro_batch": plan.micro_batch,
        "_accumulation": plan.accumulation,
        "_global_batch": plan.global_batch,
        "_shards": plan.data // plan.replicas,
    }
