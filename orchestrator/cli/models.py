"""`plimsoll models`: the shipped shapes."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from orchestrator.cli.console import stdout
from orchestrator.cli.figures import count_words
from search_spaces.presets import preset_config, preset_names
from search_spaces.spec.schema import ModelSpec, Task
from search_spaces.spec.train_section import TrainSpec


def models() -> None:
    """List the shipped model presets: parameters, and those that one token meets."""
    from workers.models import describe

    train = TrainSpec(global_batch=1, sequence_length=1)
    table = Table(box=None, pad_edge=False)
    table.add_column("preset", no_wrap=True)
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("active", justify="right", no_wrap=True)
    table.add_column("blocks", justify="right")
    table.add_column("task")
    table.add_column("architecture", no_wrap=True)
    for name in preset_names():
        task = _task(preset_config(name))
        facts = describe(ModelSpec(name=name, task=task), train)
        parameters, blocks = count_words(facts.parameters), str(facts.blocks)
        active = count_words(facts.active or facts.parameters)
        table.add_row(name, parameters, active, blocks, task, facts.architecture)
    stdout().print(table)


def _task(config: dict[str, Any]) -> Task:
    architectures = " ".join(config.get("architectures", ()))
    return "masked-lm" if "MaskedLM" in architectures else "causal-lm"
