"""Command line and output of every benchmark: its figures, and where they come from."""

import argparse
import functools
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.host import package_versions, system_facts
from search_spaces.safety.files import write_durably

_ROOT = Path(__file__).parents[1]


def command_line(text: str | None) -> argparse.ArgumentParser:
    """Returns a program's parser, with the option `--out`; the text's first line describes it."""
    parser = argparse.ArgumentParser(description=(text or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, metavar="FILE", help="file to keep the figures in")
    return parser


def circumstances() -> dict[str, Any]:
    """Date, commit, command, processor and versions."""
    facts = system_facts()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "command": _command(),
        "cpu": facts["cpu"],
        "cores": facts.get("cores_logical"),
        "versions": dict(package_versions()),
    }


@functools.cache
def commit() -> str | None:
    """The checkout's commit, with a + if files differ from it; None outside of a checkout."""
    try:
        hashed, changed = (
            subprocess.run(["git", *typed], cwd=_ROOT, capture_output=True, text=True, check=True)
            for typed in (("rev-parse", "--short", "HEAD"), ("status", "--porcelain", "-uno"))
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return hashed.stdout.strip() + ("+" if changed.stdout.strip() else "")


def _command() -> str:
    """The command line of this process, without the paths of this machine."""
    words = (Path(word).name if word.startswith("/") else word for word in sys.orig_argv[1:])
    return shlex.join(["python", *words])


def write(figures: Mapping[str, Any], file: Path | None) -> None:
    """Writes figures and circumstances as JSON, where a file is given."""
    if file is not None:
        write_durably(file, json.dumps({**figures, **circumstances()}, indent=2) + "\n")
