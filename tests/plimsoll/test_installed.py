"""Check for colliding distributions before the command imports any package."""

import os
import sys
from pathlib import Path

import pytest

from plimsoll.installed import collisions
from tests.commands import run_command

ROOT = Path(__file__).parent.parent.parent
OURS = {"top_level.txt": "orchestrator\nplimsoll\nsearch_spaces\nworkers\n"}


def install(site: Path, name: str, version: str = "1.0", **files: str) -> None:
    """Writes a distribution's metadata into a folder of packages."""
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    metadata = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n"
    for file, text in ({"METADATA": metadata} | files).items():
        (folder / file).write_text(text, encoding="utf-8")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of packages with this distribution."""
    install(tmp_path, "plimsoll-tune", "0.1.0", **OURS)
    return tmp_path


@pytest.mark.parametrize(
    "files",
    [
        {"top_level.txt": "orchestrator\n"},
        {"RECORD": "orchestrator/__init__.py,sha256=x,1\nado_core-1.8.0.dist-info/METADATA,,\n"},
    ],
)
def test_another_distribution_with_a_package_of_the_same_name(
    site: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(site)])
    install(site, "numpy", "2.0", RECORD="numpy/__init__.py,,\nnumpy/orchestrator/a.py,,\n")
    assert collisions() == ""
    install(site, "ado_core", "1.8.0", **files)

    assert collisions() == (
        "plimsoll-tune shares an environment with ado-core (orchestrator), which installs packages"
        " of the same name, and each overwrites files of the other; `pip uninstall ado-core`, then"
        " `pip install --force-reinstall --no-deps plimsoll-tune`, or give each its own"
        " environment"
    )


@pytest.mark.parametrize("command", ["doctor", "--help"])
def test_the_command_says_so_though_orchestrator_is_another_s(site: Path, command: str) -> None:
    """The other package precedes Plimsoll's on the path, and cannot even be imported."""
    install(site, "ado-core", "1.8.0", **{"top_level.txt": "orchestrator"})
    (site / "orchestrator").mkdir()
    (site / "orchestrator" / "__init__.py").write_text("raise RuntimeError('of ado-core')")
    (site / "plimsoll").symlink_to(ROOT / "plimsoll")
    ended = run_command(
        [sys.executable, "-m", "plimsoll", command],
        folder=site,
        environment={**os.environ, "PYTHONPATH": str(site)},
        seconds=60,
    )

    assert (ended.returncode, ended.stdout) == (2, "")
    assert "ado-core (orchestrator)" in ended.stderr
    assert ended.stderr.count("\n") == 1
