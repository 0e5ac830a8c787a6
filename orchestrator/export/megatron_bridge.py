"""Export for Megatron-Bridge 0.6: a file of overrides for its recipe of the model, with a script.

Its recipes set more than a plan does, so the file also takes back what they set otherwise.
"""

from typing import Any

import yaml

from orchestrator.export import scripts
from orchestrator.export.bundle import Bundle
from orchestrator.export.source import ExportSource
from orchestrator.export.trainer_file import export_values
from search_spaces.settings.render import render_environment
from search_spaces.settings.trainer_refusals import BRIDGE_MODELS
from search_spaces.specification.trainer_configs.document import tree_of
from search_spaces.specification.trainer_configs.tables import trainers, write

_FILE, _SCRIPT = "megatron_bridge.yaml", "pretrain.py"
_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"


def export(source: ExportSource) -> Bundle:
    """Returns the overrides, the script that reads them, and the command that starts it."""
    family, recipe, hub_id = BRIDGE_MODELS[source.spec.model.name]
    command = f"{scripts.start_command(source).removesuffix(scripts.SCRIPT)}{_SCRIPT}"
    title = scripts.quotable_title(source)
    keys = _keys(source) | {"model.hf_model_id": hub_id}
    overrides = yaml.safe_dump(tree_of(keys), sort_keys=False)
    script = scripts.render_template(
        "bridge_pretrain.py.jinja",
        title=title,
        command=command,
        family=family,
        recipe=recipe,
        file=_FILE,
    )
    return Bundle(
        format="megatron-bridge",
        files={_FILE: f"# {title}\n#\n#     {command}\n{overrides}", _SCRIPT: script},
        command=command,
        environment=render_environment(source.plan, source.device),
        local=False,
    )


def _keys(source: ExportSource) -> dict[str, Any]:
    plan, train = source.plan, source.spec.train
    keys = write(trainers()["Megatron-Bridge"], export_values(source))
    full = plan.checkpoint_ratio == 1.0
    keys["model.recompute_granularity"] = "full" if full else None
    keys["model.recompute_method"] = "uniform" if full else None
    keys["model.recompute_num_layers"] = 1 if full else None
    keys["optimizer.adam_beta1"], keys["optimizer.adam_beta2"] = train.betas or (0.9, 0.999)
    keys["optimizer.adam_eps"] = train.eps or 1e-8
    keys["model.seq_length"] = train.sequence_length
    keys["scheduler.start_weight_decay"] = train.weight_decay
    keys["ddp.overlap_param_gather"] = plan.zero_stage == 1
    allocator = dict(render_environment(plan, source.device)).get(_ALLOCATOR)
    # its recipes let segments grow
    keys[f"env_vars.{_ALLOCATOR}"] = allocator or "expandable_segments:False"
    return keys
