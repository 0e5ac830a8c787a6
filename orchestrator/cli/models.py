"""`plimsoll models`: the shipped model presets."""

from typing import Any

from rich.table import Table

from orchestrator.cli.console import stdout
from orchestrator.cli.options import Json
from orchestrator.cli.result import Result
from orchestrator.report.format import count_words
from search_spaces.presets.catalogue import preset_config, preset_facts


def models(as_json: Json = False) -> Result:
    """List the shipped model presets, with their total and active parameters."""
    content = []
    for name, facts in preset_facts().items():
        architecture = " ".join(preset_config(name)["architectures"])
        content.append(
            {
                "name": name,
                "parameters": facts.parameters,
                "active_parameters": facts.active or facts.parameters,
                "blocks": facts.blocks,
                "task": facts.task,
                "architecture": architecture,
            }
        )
    if not as_json:
        _show(content)
    return Result(kind="models", content=lambda: content)


def _show(rows: list[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("preset", no_wrap=True)
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("active", justify="right", no_wrap=True)
    table.add_column("blocks", justify="right")
    table.add_column("task")
    table.add_column("architecture", no_wrap=True)
    for row in rows:
        counts = [count_words(row["parameters"]), count_words(row["active_parameters"])]
        table.add_row(row["name"], *counts, str(row["blocks"]), row["task"], row["architecture"])
    stdout().print(table)
