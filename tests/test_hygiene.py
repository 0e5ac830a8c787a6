"""Files for hosts and tools of developers agree with what the repository itself does."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent


def test_hooks_before_a_commit_run_the_style_checks_with_their_pinned_versions() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    lint = re.findall(r"\$\(BIN\)/(ruff .*) \.$", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert [hook["entry"].replace(" --force-exclude", "") for hook in hooks] == lint[:2]
    assert {pin for hook in hooks for pin in hook["additional_dependencies"]} <= {*pins}


def test_workflows_run_what_every_change_must_pass_and_publish_only_after_it() -> None:
    files = (ROOT / ".github" / "workflows").glob("*.yml")
    jobs = {file.stem: yaml.safe_load(file.read_text())["jobs"] for file in files}

    assert {*jobs} == {"ci", "release"}
    for job in (jobs["ci"]["ci"], jobs["release"]["build"]):
        assert ".ci/run" in [step.get("run") for step in job["steps"]]
    assert jobs["release"]["publish"]["needs"] == "build"
    assert jobs["release"]["publish"]["permissions"] == {"id-token": "write"}
