"""Tools for coding agents, over a real connection to `plimsoll mcp`."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.orchestrator.cli.studies import a_plan, a_study
from tests.outcomes import make_measured

pytest.importorskip("mcp", reason="needs the extra mcp")
CALLS = (
    ("check", {"spec": "demo.yaml", "overrides": ["train.global_batch=32"]}),
    ("plan", {"spec": "demo.yaml", "gpu": "H100"}),
    ("status", {"study": "demo"}),
    ("report", {"study": "demo"}),
    ("explain", {"study": "demo", "plan": "checkpoint_ratio=0.5"}),
    ("report", {"study": "--out=stolen.json"}),  # no option
)


async def answers(arguments: tuple[str, ...], calls: tuple[Any, ...], folder: Path) -> Any:
    from mcp import Client, StdioServerParameters, stdio_client

    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "plimsoll", "mcp", *arguments],
        env=dict(os.environ),
        cwd=folder,
    )
    async with Client(stdio_client(server)) as client:
        tools = (await client.list_tools()).tools
        results = [await client.call_tool(name, values) for name, values in calls]
    return tools, [(result.is_error, result.content[0].text) for result in results]


@pytest.mark.slow
def test_each_tool_returns_the_document_of_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    a_study(((a_plan(), make_measured(20.0, 0.3)), (a_plan(micro_batch=2), make_measured(30.0))))

    tools, said = asyncio.run(answers((), CALLS, tmp_path))
    more, _ = asyncio.run(answers(("--allow-tune",), (), tmp_path))

    assert [tool.name for tool in tools] == ["check", "plan", "status", "report", "explain"]
    assert all(tool.annotations.read_only_hint for tool in tools)
    assert {tool.name for tool in more} - {tool.name for tool in tools} == {"tune"}
    assert [failed for failed, _ in said] == [False] * 5 + [True]
    check, plan, status, report, explain = (json.loads(text)["result"] for _, text in said[:5])
    assert check["effective_specification"]["train"]["global_batch"] == 32
    assert plan["device"].startswith("H100")
    assert status["answer"] == report["answer"] == report["trials"][1]
    assert "trials" not in status
    assert explain["explains"] == "untried"
    assert "neither a specification nor a study" in said[5][1]
    assert not (tmp_path / "stolen.json").exists()
