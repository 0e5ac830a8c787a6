"""The Dockerfile, as far as it can be checked without building it: its parts run by themselves."""

import os
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import yaml

from tests.commands import run_command
from tests.k8s.rendering import K8S, ROOT, needs_kubectl, rendered
from tests.k8s.test_policies import our_version, pinned

TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def steps(keyword: str) -> list[list[str]]:
    """The words of each instruction of a kind, in order."""
    joined = re.sub(r"#.*\n", "", TEXT).replace("\\\n", " ")
    lines = [line.partition(" ") for line in joined.splitlines() if line.strip()]
    return [shlex.split(rest) for name, _, rest in lines if name == keyword]


def copied() -> list[str]:
    """Returns what comes from the repository."""
    return [source for words in steps("COPY") for source in words[:-1]]


def test_it_copies_every_package_and_nothing_that_is_ignored() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packages = {name.removesuffix("*") for name in project["packages"]["find"]["include"]}

    assert packages <= {*copied()}
    assert [source for source in copied() if not (ROOT / source).exists()] == []
    assert {line[1:] for line in lines if line.startswith("!")} == {*copied()}


def test_the_base_is_pinned_and_is_the_python_of_the_constraints() -> None:
    base = steps("FROM")[0][0]
    series = re.search(r"\(Python (\d+\.\d+), Linux\)", (ROOT / "constraints.txt").read_text())

    assert series is not None
    assert re.fullmatch(rf"python:{re.escape(series[1])}\.\d+-slim-\w+@sha256:[0-9a-f]{{64}}", base)


def test_it_ends_as_the_user_that_the_manifests_run_it_as() -> None:
    users = steps("USER")
    job = next(one for one in rendered("local") if one["kind"] == "RayJob")
    context = job["spec"]["submitterPodTemplate"]["spec"]["securityContext"]

    assert users[-1] == [f"{context['runAsUser']}:{context['runAsGroup']}"]
    assert f"--uid {context['runAsUser']}" in TEXT
    assert "apt-get" not in TEXT.partition("\nFROM slim\n")[0]  # `slim` has no compiler
    assert "bash -lc 'command -v ray plimsoll mlflow'" in TEXT  # as the operator calls them


def test_s7_every_file_that_it_installs_has_a_hash() -> None:
    """All packages come from the lock file, and ours without anything else."""
    installs = [
        shlex.split(part)
        for words in steps("RUN")
        for part in shlex.join(words).split("'&&'")
        if part.split()[:2] == ["pip", "install"]
    ]

    assert [words[2:] for words in installs] == [
        ["--require-hashes", "--requirement", "image.lock"],
        ["--no-deps", "--no-build-isolation", "."],
    ]


def test_s7_the_lock_holds_the_pinned_versions_with_hashes() -> None:
    pins = _pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    text = (ROOT / "image.lock").read_text(encoding="utf-8")
    locked = _pins(text)
    hashed = re.findall(r"^[\w.-]+==\S+ \\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)

    assert len(hashed) == len(locked) > 100
    assert {name: at for name, at in locked.items() if pins.get(name, at) != at} == {}
    # what builds the wheel is no constraint
    assert set(locked) - set(pins) == {"setuptools", "setuptools-scm", "vcs-versioning"}


def _pins(text: str) -> dict[str, str]:
    found = re.findall(r"^([\w.-]+)==([^\s\\]+)", text, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


def made(target: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Makes a target of the Makefile that installs nothing."""
    path = variables.pop("PATH", os.environ["PATH"])
    return run_command(
        ["make", "--silent", target, *(f"{name}={value}" for name, value in variables.items())],
        folder=ROOT,
        environment={"PATH": path, "HOME": os.environ["HOME"]},
    )


def test_s7_an_overlay_without_digests_is_refused_for_a_release(tmp_path: Path) -> None:
    needs_kubectl()
    shutil.copytree(K8S, tmp_path / "k8s")
    overlay = tmp_path / "k8s" / "overlays" / "cloud"
    by_tag = made("digests", OVERLAY=str(overlay))
    file = overlay / "kustomization.yaml"
    digest = f"newName: registry.example.com/plimsoll\n    digest: sha256:{'0' * 64}"
    file.write_text(file.read_text().replace(f"newTag: {our_version()}", digest))

    assert by_tag.stderr.splitlines()[0] == f"no digest: plimsoll:{our_version()}"
    assert by_tag.returncode
    assert made("digests", OVERLAY=str(overlay)).returncode == 0
    assert made("digests", OVERLAY=str(tmp_path)).returncode  # no overlay at all


def test_s7_what_is_pushed_is_named_by_its_digest(tmp_path: Path) -> None:
    digest = f"sha256:{'2' * 64}"
    script = f'#!/bin/sh\nfor last; do :; done\n[ $1 != image ] || echo "${{last%:*}}@{digest}"\n'
    (tmp_path / "docker").write_text(script)
    (tmp_path / "docker").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    pushed = made("push", REGISTRY="registry.example.com/team", PATH=path)

    named = [f"registry.example.com/team/{one}@{digest}" for one in ("plimsoll", "plimsoll-slim")]
    assert pushed.stdout.splitlines()[-2:] == named
    assert "REGISTRY=" in made("push", PATH=path).stderr


def test_versions_agree_wherever_they_stand() -> None:
    texts = {file: file.read_text() for file in K8S.rglob("*.yaml")}
    tags = {tag for text in texts.values() for tag in re.findall(r"newTag: (\S+)", text)}
    rays = {ray for text in texts.values() for ray in re.findall(r"rayVersion: (\S+)", text)}
    job = yaml.safe_load((K8S / "base" / "sweep-rayjob.yaml").read_text())

    assert tags == {our_version()}
    assert rays == {pinned("ray")}
    assert job["spec"]["metadata"]["version"] == our_version()
