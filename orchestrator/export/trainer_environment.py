"""Checks the file of another trainer: by our own table, and by that trainer's parser.

Each trainer pins other versions than ours. What its parser needs is locked in `locks/`, installed
in a folder of its own on the user's word, and imported before Plimsoll's packages.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from orchestrator.export.verify import Finding, equal
from search_spaces.errors import UserError
from search_spaces.settings.export_manifest import ExportManifest
from search_spaces.specification.trainer_configs.conversion import settings_of
from search_spaces.specification.trainer_configs.document import flattened, read_document
from workers.models.disk_cache import cache_folder

_HERE = Path(__file__).parent
PARSERS = tuple(sorted(file.stem for file in (_HERE / "locks").glob("*.txt")))
_SECONDS = 1200.0
_OFFLINE = {"HF_HUB_OFFLINE": "1", "AXOLOTL_DO_NOT_TRACK": "1", "CUDA_VISIBLE_DEVICES": ""}
_BRIDGE = "Megatron-Bridge needs CUDA and Transformer Engine to read its configurations"
_PIP = "-m pip install --no-deps --require-hashes --disable-pip-version-check --quiet"


def check_file(
    manifest: ExportManifest, folder: Path, say: Callable[[str], None], *, install: bool
) -> Iterator[Finding]:
    """Yields what the file means by `init --from`, and what its trainer's parser says to it.

    The parser is installed on the word `install`, and `say` is told so before.

    Raises:
        UserError: If the file cannot be read, or the parser not be installed or started.
    """
    file = next(name for name, _ in manifest.files if name.endswith((".yaml", ".py")))
    plan, train = manifest.plan, flattened(manifest.train.model_dump(mode="json"))
    expected = {f"baseline.{knob}": value for knob, value in plan.as_dict().items()}
    expected |= {f"train.{key}": value for key, value in train}
    expected |= {"train.precision": plan.precision, "train.lora.base": manifest.base}
    for key, value in settings_of(*read_document(str(folder / file)), folder).values.items():
        # most files name no ranks, and one rank shards nothing
        is_same = key == "train.global_batch" or (key == "baseline.zero_stage" and plan.data == 1)
        if key in expected and not is_same:
            yield equal(key, expected[key], value)
    if manifest.format not in PARSERS:
        if install:
            raise UserError(f"the parser of {manifest.format} cannot be installed: {_BRIDGE}")
        reason = f"{file} was parsed only by Plimsoll: {_BRIDGE}"
        yield replace(equal("own parser", f"it accepts {file}", None), reason=reason)
        return
    text = (lock := _HERE / "locks" / f"{manifest.format}.txt").read_text("utf-8")
    parser, size = text[2:].partition(" to download")[0].split(", ")
    digest = sha256(f"{text}{sys.version}".encode()).hexdigest()[:12]
    packages = cache_folder("trainers") / f"{manifest.format}-{digest}"
    what = f"{parser} ({size}, into {packages})"
    if install and not packages.exists():
        say(f"installing {what} ...")
        packages.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=packages.parent) as partial:
            words = [*_PIP.split(), "--target", f"{partial}/packages", "-r", str(lock)]
            if complaint := _complaint(words, lock.parent, {}):
                raise UserError(f"{parser} cannot be installed: {complaint}")
            if not packages.exists():  # another process may have been faster
                Path(partial, "packages").rename(packages)
    accepted, answer = f"{parser} accepts {file}", None
    if packages.exists():
        words = ["-P", str(_HERE / "trainer_parser.py"), manifest.format, file]
        answer = _complaint(words, folder, _OFFLINE | {"PYTHONPATH": str(packages)}) or accepted
        if answer.startswith("ModuleNotFoundError"):
            raise UserError(f"{parser} cannot start ({answer}): install plimsoll-tune[all]")
    finding = equal("own parser", accepted, answer)
    reason = f"{file} was parsed only by Plimsoll; --install gets {what} to parse it, too"
    yield finding if answer else replace(finding, reason=reason)


def _complaint(words: list[str], folder: Path, variables: dict[str, str]) -> str:
    """Runs this Python; returns the last line that it prints if it fails."""
    both: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    command, environment = [sys.executable, *words], os.environ | variables
    try:
        run = subprocess.run(
            command, cwd=folder, env=environment, timeout=_SECONDS, check=False, **both
        )
    except subprocess.TimeoutExpired:
        return f"it took longer than {_SECONDS:.0f} s"
    return (run.stdout.strip() or "it failed").splitlines()[-1] if run.returncode else ""
