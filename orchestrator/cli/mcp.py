"""`plimsoll mcp`: commands as tools for coding agents, by the Model Context Protocol."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Annotated

import typer

from search_spaces.errors import require


def mcp(
    allow_tune: Annotated[
        bool, typer.Option("--allow-tune", help="Also offer `tune`, which runs trials.")
    ] = False,
) -> None:
    """Serve check, plan, status, report and explain to coding agents, on stdin and stdout."""
    require("mcp")
    from mcp.server.mcpserver import MCPServer
    from mcp.types import ToolAnnotations

    server = MCPServer("plimsoll", log_level="WARNING")
    for tool in (check, plan, status, report, explain, *([tune] if allow_tune else [])):
        reads = ToolAnnotations(read_only_hint=tool is not tune)
        server.add_tool(tool, annotations=reads, structured_output=False)
    server.run()


async def check(spec: str, overrides: tuple[str, ...] = ()) -> str:
    """Check a specification (a YAML file); `overrides` are KEY=VALUE. Runs no trial."""
    return await _command("check", spec, overrides)


async def plan(spec: str, gpu: str = "", gpus: str = "", overrides: tuple[str, ...] = ()) -> str:
    """Forecast speed and memory of every legal plan, such as gpu="H100", gpus="8,16"."""
    return await _command("plan", spec, overrides, gpu=gpu, gpus=gpus)


async def status(study: str) -> str:
    """Tell how far a sweep is: its best plan, its validation and outcomes so far."""
    document = json.loads(await _command("report", study))
    del document["result"]["trials"], document["result"]["validations"]
    return json.dumps(document)


async def report(study: str) -> str:
    """Report a study, named by its specification, folder or name: best plan and all trials."""
    return await _command("report", study)


async def explain(study: str, trial: int | None = None, plan: str = "") -> str:
    """Explain the best plan, how a trial ended, or why a plan ("micro_batch=8") was not tried."""
    return await _command("explain", study, trial="" if trial is None else str(trial), plan=plan)


async def tune(spec: str, overrides: tuple[str, ...] = ()) -> str:
    """Run trials until the budget is spent, or resume them; `status` shows them meanwhile."""
    return await _command("tune", spec, overrides)


async def _command(name: str, subject: str, sets: tuple[str, ...] = (), **options: str) -> str:
    """Runs a command in a process of its own; raises ToolError if it prints no document."""
    from mcp.server.mcpserver.exceptions import ToolError

    words = [f"--{option}={value}" for option, value in options.items() if value]
    words += [*(f"--set={one}" for one in sets), "--json", "--", subject]
    null, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "plimsoll", name, *words), stdin=null, stdout=pipe, stderr=pipe
    )
    try:
        document, message = await process.communicate()
    finally:
        if process.returncode is None:  # the call was cancelled; a sweep keeps what it measured
            process.terminate()
    if not document:
        raise ToolError(message.decode().strip())
    return document.decode()
