"""Shell completion of studies, keys, presets, GPUs and formats.

Completions come from names and small files: no framework is imported, no database opened.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from orchestrator.workspace import SPEC_FILE
from search_spaces.spec.load import known_keys
from search_spaces.spec.schema import StudySpec
from search_spaces.spec.template import RUNNABLE_EXAMPLES

FORMAT_NAMES = (  # of orchestrator.export, whose import takes a second
    *("torchrun", "deepspeed", "accelerate"),
    *("hf-trainer", "ray-train", "rayjob"),
)
_MODEL = "model.name="


def complete_study(incomplete: str) -> Iterator[str]:
    """Yields studies of this folder by name, then files and folders."""
    runs = Path(StudySpec().folder)
    names = sorted(file.parent.name for file in runs.glob(f"*/{SPEC_FILE}"))
    yield from (name for name in names if name.startswith(incomplete))
    typed = Path(incomplete)
    folder = typed if incomplete.endswith("/") else typed.parent
    with contextlib.suppress(OSError, ValueError):  # no readable folder
        for entry in sorted(folder.iterdir()):
            path = str(entry) + ("/" if entry.is_dir() else "")
            if path.startswith(incomplete) and not entry.name.startswith("."):
                yield path


def complete_key(incomplete: str) -> Iterator[str]:
    """Yields keys of a specification with their `=`, and presets after `model.name=`."""
    if incomplete.startswith(_MODEL):
        from search_spaces.presets.catalogue import preset_names

        words = [f"{_MODEL}{name}" for name in preset_names()]
    else:
        words = [f"{key}=" for key in known_keys()]
    yield from (word for word in words if word.startswith(incomplete))


def complete_gpu(incomplete: str) -> Iterator[str]:
    """Yields the names of the devices in the catalogue."""
    from search_spaces.hardware.catalogue import catalogue

    start = incomplete.casefold()
    yield from (gpu.name for gpu in catalogue() if gpu.name.casefold().startswith(start))


def complete_format(incomplete: str) -> Iterator[str]:
    """Yields the names of the export formats."""
    yield from (name for name in FORMAT_NAMES if name.startswith(incomplete))


def complete_example(incomplete: str) -> Iterator[str]:
    """Yields the names of the examples that `init` writes."""
    yield from (name for name in RUNNABLE_EXAMPLES if name.startswith(incomplete))
