"""Shell completion of studies, trials, keys, presets, GPUs and formats.

Completions come from names and small files: no framework is imported, no database opened.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import typer

from orchestrator.workspace import SPEC_FILE, latest_spec
from search_spaces.errors import UserError
from search_spaces.spec.files import is_file
from search_spaces.spec.load import known_keys, load_spec, study_name
from search_spaces.spec.schema import StudySpec
from search_spaces.spec.template import RUNNABLE_EXAMPLES

FORMAT_NAMES = (  # of orchestrator.export, whose import takes a second
    *("torchrun", "deepspeed", "accelerate"),
    *("hf-trainer", "ray-train", "rayjob"),
)
_EVENTS_FILE = "events.jsonl"  # in a study's folder, see orchestrator.tracking.events
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


def complete_trial(ctx: typer.Context, incomplete: str) -> Iterator[str]:
    """Yields the numbers of the study's finished trials, as its event log has them."""
    with contextlib.suppress(UserError, OSError, ValueError):
        numbers = {str(number) for number in _trials(_folder(_typed_study(ctx)))}
        matching = (number for number in numbers if number.startswith(incomplete))
        yield from sorted(matching, key=int)


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


def _typed_study(ctx: typer.Context) -> str | None:
    params = ctx.params
    # click puts words before an unfinished option into `args`
    words = (params.get("study"), *(params.get("words") or ()), *ctx.args)
    return next((word for word in words if word and not word.startswith("-")), None)


def _folder(study: str | None) -> Path:
    """The folder of a study, from its specification, folder or name."""
    if study is None:
        return latest_spec().parent
    path = Path(study)
    if is_file(path) and path.name != SPEC_FILE:
        spec = load_spec(path)
        return Path(spec.study.folder) / study_name(spec, path)
    if path.name == SPEC_FILE:
        return path.parent
    return path if path.is_dir() else Path(StudySpec().folder) / study


def _trials(folder: Path) -> Iterator[int]:
    for line in (folder / _EVENTS_FILE).read_bytes().splitlines():
        with contextlib.suppress(ValueError):  # a driver was killed while it wrote this line
            event = json.loads(line)
            if event.get("event") == "trial_ended":
                yield int(event["trial"])
