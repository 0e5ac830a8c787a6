"""`plimsoll models`: the shipped shapes."""

from __future__ import annotations

from rich.table import Table

from orchestrator.cli.console import stdout
from orchestrator.cli.figures import count_words
from search_spaces.presets import preset_config, preset_facts
from search_spaces.spec.schema import Task


def models() -> None:
    """List the shipped model presets, with the parameters that their shapes have."""
    table = Table(box=None, pad_edge=False)
    table.add_column("preset", no_wrap=True)
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("blocks", justify="right")
    table.add_column("task")
    table.add_column("architecture", no_wrap=True)
    for name, facts in preset_facts().items():
        config = preset_config(name)
        parameters, blocks = count_words(facts.parameters), str(facts.blocks)
        architecture = " ".join(config["architectures"])
        table.add_row(name, parameters, blocks, _task(architecture), architecture)
    stdout().print(table)


def _task(architecture: str) -> Task:
    return "masked-lm" if "MaskedLM" in architecture else "causal-lm"
