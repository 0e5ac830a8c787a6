"""The latest sweep of a folder, so that `report` and `ui` need no argument.

Each study's folder holds the specification that it was last run with, its name filled in.
"""

from __future__ import annotations

from pathlib import Path

from search_spaces.errors import UserError
from search_spaces.spec.load import spec_to_yaml
from search_spaces.spec.schema import StudySpec, SweepSpec

SPEC_FILE = "spec.yaml"


def remember(spec: SweepSpec, name: str) -> None:
    """Writes the specification into the study's folder.

    Raises:
        UserError: If the folder cannot be written.
    """
    named = spec.model_copy(update={"study": spec.study.model_copy(update={"name": name})})
    folder = Path(spec.study.folder) / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SPEC_FILE).write_text(spec_to_yaml(named), encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"study.folder {spec.study.folder} cannot be written: {reason}") from None


def latest_spec() -> Path:
    """The specification of the latest sweep in the current directory.

    Raises:
        UserError: If none has run here.
    """
    folder = Path(StudySpec().folder)
    found = list(folder.glob(f"*/{SPEC_FILE}"))
    if not found:
        raise UserError(f"no sweep has run in {folder} yet; name a specification or a study")
    return max(found, key=lambda file: file.stat().st_mtime)
