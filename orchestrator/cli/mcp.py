"""`plimsoll mcp`: commands as tools for coding agents, by the Model Context Protocol."""

import json
import subprocess
import sys
from typing import Annotated

import typer

from search_spaces.errors import require


def mcp(
    allow_tune: Annotated[bool, typer.Option("--allow-tune")] = False,
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


def check(spec: str, overrides: tuple[str, ...] = ()) -> str:
    """Check a specification (a YAML file); `overrides` are KEY=VALUE. Runs no trial."""
    return _command("check", spec, overrides)


def plan(spec: str, gpu: str = "", gpus: str = "", overrides: tuple[str, ...] = ()) -> str:
    """Forecast speed and memory of every legal plan, such as gpu="H100", gpus="8,16"."""
    return _command("plan", spec, overrides, gpu=gpu, gpus=gpus)


def status(study: str) -> str:
    """Tell how far a sweep is: its best plan, its validation and outcomes so far."""
    document = json.loads(_command("report", study))
    del document["result"]["trials"], document["result"]["validations"]
    return json.dumps(document)


def report(study: str) -> str:
    """Report a study, named by its specification, folder or name: best plan and all trials."""
    return _command("report", study)


def explain(study: str, trial: int | None = None, plan: str = "") -> str:
    """Explain the best plan, how a trial ended, or why a plan ("micro_batch=8") was not tried."""
    return _command("explain", study, trial="" if trial is None else str(trial), plan=plan)


def tune(spec: str, overrides: tuple[str, ...] = ()) -> str:
    """Run trials until the budget is spent, or resume them; `status` shows them meanwhile."""
    return _command("tune", spec, overrides)


def _command(name: str, subject: str, sets: tuple[str, ...] = (), **options: str) -> str:
    """Runs a command in a process of its own; raises ToolError if it prints no document."""
    from mcp.server.mcpserver.exceptions import ToolError

    words = [f"--{option}={value}" for option, value in options.items() if value]
    words += [*(f"--set={one}" for one in sets), "--json", "--", subject]
    command, null = (sys.executable, "-m", "plimsoll", name, *words), subprocess.DEVNULL
    ended = subprocess.run(command, stdin=null, capture_output=True, text=True, check=False)
    if not ended.stdout:
        raise ToolError(ended.stderr.strip())
    return ended.stdout
