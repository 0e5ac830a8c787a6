"""Sentences on what a format leaves to its user, from the template of all formats."""

import math
import re
from typing import get_args

from orchestrator.export.hf_trainer import all_recomputed
from orchestrator.export.rayjob import memory_gib
from orchestrator.export.scripts import render_text
from orchestrator.export.source import ExportSource
from search_spaces.presets.catalogue import preset_names
from search_spaces.specification.schema import TrainerFile


def caveats(format_name: str, source: ExportSource) -> tuple[str, ...]:
    """Returns the sentences for a plan in a format, each on one line."""
    plan = source.plan
    text = render_text(
        "caveats.jinja",
        format=format_name,
        source=source,
        plan=plan,
        spec=source.spec,
        is_file=format_name in get_args(TrainerFile),
        is_preset=source.spec.model.name in preset_names(),
        pinned=", in pinned memory" if plan.loader_pin_memory else "",
        all_recomputed=all_recomputed(plan),
        memory_gib=memory_gib(source, math.ceil(plan.world_size / source.hosts)),
    )
    return tuple(" ".join(one.split()) for one in re.split("^- ", text, flags=re.MULTILINE)[1:])
