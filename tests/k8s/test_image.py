"""The Dockerfile, as far as it can be checked without building it: its parts run by themselves."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import yaml

from tests.k8s.rendering import K8S, ROOT, rendered
from tests.k8s.test_policies import our_version, pinned

TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def steps(keyword: str) -> list[list[str]]:
    """The words of each instruction of a kind, in order."""
    joined = re.sub(r"#.*\n", "", TEXT).replace("\\\n", " ")
    lines = [line.partition(" ") for line in joined.splitlines() if line.strip()]
    return [shlex.split(rest) for name, _, rest in lines if name == keyword]


def copied() -> list[str]:
    """What comes from the repository."""
    return [source for words in steps("COPY") for source in words[:-1]]


def test_what_it_copies_exists_and_is_let_through() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    ignored = [line for line in lines if line[:1] not in ("#", "")]

    assert [source for source in copied() if not (ROOT / source).exists()] == []
    assert ignored[0] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == {*copied()}


def test_the_base_is_pinned_and_is_the_python_of_the_constraints() -> None:
    ((base,),) = steps("FROM")
    series = re.search(r"\(Python (\d+\.\d+), Linux\)", (ROOT / "constraints.txt").read_text())

    assert series is not None
    assert re.fullmatch(rf"python:{re.escape(series[1])}\.\d+-slim-\w+", base)


def test_it_does_not_end_as_root() -> None:
    """By the number that the manifests run it as."""
    users = steps("USER")
    job = next(one for one in rendered("local") if one["kind"] == "RayJob")
    context = job["spec"]["submitterPodTemplate"]["spec"]["securityContext"]

    assert users[-1] == [f"{context['runAsUser']}:{context['runAsGroup']}"]
    assert f"--uid {context['runAsUser']}" in TEXT
    assert "sudo" not in TEXT


def test_it_installs_as_the_makefile_does() -> None:
    """Everything by constraints.txt, torch first and alone."""
    makefile = (ROOT / "Makefile").read_text()
    installs = [
        shlex.split(part)
        for words in steps("RUN")
        for part in shlex.join(words).split("'&&'")
        if part.split()[:2] == ["pip", "install"]
    ]

    assert len(installs) == 3
    for words in installs:
        assert words[2:4] == ["--constraint", "constraints.txt"]
    assert installs[0][4:] == ["torch"]
    assert "--constraint constraints.txt" in makefile
    assert re.findall(r"\$\(PIP_INSTALL\) (.*)", makefile) == ["torch", "--editable '.[dev]'"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert installs[1][4] == ".[all]"
    assert "all" in extras


def test_what_it_copies_is_enough_to_install(tmp_path: Path) -> None:
    """Both steps: the metadata alone, for the layer of dependencies, and then the packages."""
    for source in copied()[:4]:
        shutil.copy(ROOT / source, tmp_path / source)
    assert wheel(tmp_path, tmp_path / "first") == set()
    for source in copied()[4:]:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / source, tmp_path / source, ignore=ignore)
    packed = wheel(tmp_path, tmp_path / "second")

    sources = {
        file.relative_to(ROOT).as_posix()
        for package in copied()[4:]
        for file in (ROOT / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert len(sources) > 100
    assert packed == sources  # templates, styles and scripts among them


def wheel(folder: Path, out: Path) -> set[str]:
    """The files of the wheel that pip makes there, its own metadata apart."""
    words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out)]
    if builds_here():
        words.append("--no-build-isolation")  # nothing has to be fetched for it
    subprocess.run([*words, "."], cwd=folder, check=True, capture_output=True)
    (file,) = out.iterdir()
    with zipfile.ZipFile(file) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def builds_here() -> bool:
    """Whether a setuptools as pyproject.toml asks for is installed."""
    try:
        return int(version("setuptools").partition(".")[0]) >= 77
    except PackageNotFoundError:
        return False


def test_a_login_shell_finds_what_the_operator_calls() -> None:
    """Nothing is put beside the system's Python, whose folder /etc/profile keeps."""
    assert not re.search(r"venv|conda|ENV.*\bPATH=", re.sub(r"#.*", "", TEXT))
    assert "bash -lc 'command -v ray plimsoll mlflow'" in TEXT


def test_versions_agree_wherever_they_stand() -> None:
    texts = {file: file.read_text() for file in K8S.rglob("*.yaml")}
    tags = {tag for text in texts.values() for tag in re.findall(r"newTag: (\S+)", text)}
    rays = {ray for text in texts.values() for ray in re.findall(r"rayVersion: (\S+)", text)}
    job = yaml.safe_load((K8S / "base" / "sweep-rayjob.yaml").read_text())

    assert tags == {our_version()}
    assert rays == {pinned("ray")}
    assert job["spec"]["metadata"]["version"] == our_version()
    assert f"VERSION := {our_version()}" in (ROOT / "Makefile").read_text()
