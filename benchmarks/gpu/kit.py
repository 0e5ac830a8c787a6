"""Packages for a GPU machine with Python 3.12, torch and transformers, and without a network.

    python -m benchmarks.gpu.kit [.gpu-kit]

All packages are unpacked beside each other and packed as `site.tar.xz`, Ray compiled, because its
agents time out while their first import does so. `install.sh` puts them behind the packages that
the machine has, which win. scipy, pandas and pyarrow, which are too large, must be among those.
"""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

_ROOT = Path(__file__).parents[2]
_LIMIT_BYTES = 60 << 20
_BUILT = "deepspeed"  # has no wheel; its operators are compiled where they are used
_PACKAGES = """
    ray msgpack jsonschema jsonschema-specifications referencing rpds-py attrs tensorboardx
    optuna alembic mako sqlalchemy greenlet colorlog
    torchao liger-kernel deepspeed einops ninja hjson py-cpuinfo nvidia-ml-py
    pydantic pydantic-core annotated-types typing-inspection typing-extensions
    typer shellingham annotated-doc rich markdown-it-py mdurl pygments jinja2 markupsafe click
    wrapt psutil packaging pyyaml
    pytest iniconfig pluggy pytest-timeout hypothesis sortedcontainers
"""
_CUT = ("jars", "rllib", "serve", "llm", "dashboard/client")  # of ray
_MANYLINUX = (*(f"_2_{minor}" for minor in (35, 34, 31, 28, 27, 24, 17)), "2014", "2010", "1")
_TARGET = [
    *("--only-binary=:all:", "--python-version=3.12", "--implementation=cp"),
    *(f"--platform=manylinux{name}_x86_64" for name in _MANYLINUX),
]
_INSTALL = """#!/bin/sh
# Installs the kit for PYTHON, else python3; what is installed already stays in use.
set -e
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' || {
    echo "the kit is for Python 3.12; name one, as in PYTHON=python3.12 sh install.sh" >&2
    exit 2; }
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$python" -W ignore -m tarfile -e "$(dirname "$0")/site.tar.xz" "$site/gpu-kit"
echo "$site/gpu-kit" > "$site/gpu-kit.pth"
"$python" - <<'END'
from importlib.util import find_spec

for name in "torch transformers numpy scipy pandas pyarrow fsspec aiohttp grpc tqdm".split():
    if find_spec(name) is None:
        print("not in the kit, and missing here:", name)
END
"""


def download(package: str, wheels: Path) -> str:
    """Downloads or builds the wheel of a package in the pinned version; says what went wrong."""
    typed = ["download", *_TARGET, "--dest"]
    if package == _BUILT:
        typed = ["wheel", "--no-build-isolation", "--wheel-dir"]
    pinned = ["--no-deps", "--constraint", str(_ROOT / "constraints.txt"), package]
    command = [sys.executable, "-m", "pip", "--quiet", *typed, str(wheels), *pinned]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = ended.stderr.strip().splitlines() or ["pip failed"]
    return lines[-1] if ended.returncode else ""


def unpack(wheel: Path, site: Path) -> None:
    """Unpacks a wheel, with the rights of its programs, without the parts of Ray that none uses."""
    left_out = tuple(f"ray/{name}/" for name in _CUT)
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if member.filename.startswith(left_out):
                continue
            path = Path(archive.extract(member, site))
            if member.external_attr >> 16 & 0o111 and path.is_file():
                path.chmod(0o755)
                if shutil.which("strip"):
                    subprocess.run(["strip", str(path)], capture_output=True, check=False)


def compiler() -> str | None:
    """Returns a Python 3.12 of this machine; None if there is none."""
    pyenv = Path.home().glob(".pyenv/versions/3.12*/bin/python")
    names = (sys.executable, "python3.12", *map(str, pyenv))
    return next(filter(is_target, filter(shutil.which, names)), None)


def is_target(python: str) -> bool:
    """Returns whether this is a Python 3.12."""
    ended = subprocess.run([python, "--version"], capture_output=True, text=True, check=False)
    return ended.stdout.startswith("Python 3.12.")


def make(out: Path) -> Iterator[str]:
    """Writes the kit; yields what it could not hold."""
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="gpu-kit-") as folder:
        wheels, site = Path(folder, "wheels"), Path(folder, "site")
        wheels.mkdir()
        for package in _PACKAGES.split():
            if trouble := download(package, wheels):
                yield f"{package} cannot be had: {trouble}"
        for wheel in wheels.glob("*.whl"):
            unpack(wheel, site)
        # whose times do not matter, because archives change them
        flags = ["-W", "ignore", "-m", "compileall", "-qq", "--invalidation-mode", "unchecked-hash"]
        if python := compiler():
            subprocess.run([python, *flags, str(site / "ray")], check=False)
        else:
            yield "no Python 3.12 is here to compile Ray, which may then time out at its start"
        with tarfile.open(out / "site.tar.xz", "w:xz") as archive:
            archive.add(site, ".")
    (out / "install.sh").write_text(_INSTALL, "utf-8")
    if (size := (out / "site.tar.xz").stat().st_size) > _LIMIT_BYTES:
        yield f"{out / 'site.tar.xz'} has {size >> 20} MiB, more than {_LIMIT_BYTES >> 20}"


def main() -> int:
    """Makes the kit; 1 if something is missing from it."""
    out = Path(*sys.argv[1:2] or [".gpu-kit"])
    troubles = list(make(out))
    print(*troubles, f"written: {out}; there, run sh install.sh", sep="\n")
    return 1 if troubles else 0


if __name__ == "__main__":
    sys.exit(main())
