"""The tutorial's commands, run one after the other as they stand there."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.documented import said_by

ROOT = Path(__file__).parent.parent
TUTORIAL = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", TUTORIAL, re.DOTALL)
    for line in block.splitlines()
]
(SPEC,) = re.findall(r"```yaml\n(.*?)```", TUTORIAL, re.DOTALL)


def test_the_tutorial_goes_from_a_specification_to_an_export() -> None:
    verbs = [command.split()[1] for command in COMMANDS]

    assert verbs[1:] == [
        *("check", "plan", "tune", "report", "explain", "explain", "export", "verify")
    ]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_its_commands_run_as_they_stand_there(tmp_path: Path) -> None:
    (tmp_path / "first.yaml").write_text(SPEC, encoding="utf-8")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }

    for command in COMMANDS:
        said_by(command, tmp_path, environment)

    assert (tmp_path / "first-report.html").is_file()
    assert (tmp_path / "mine" / "train.py").is_file()
