"""The answer as files."""

from __future__ import annotations

from pathlib import Path

from orchestrator.planning.planned import Planned, planned_to_json
from search_spaces.errors import UserError


def write_planned(planned: Planned, json_file: Path, html_file: Path) -> tuple[Path, Path]:
    """Writes the answer as JSON and as a page of charts; folders are made.

    Raises:
        UserError: If a file cannot be written.
    """
    from orchestrator.planning.page import planned_page  # it reads templates and scripts

    for file, text in ((json_file, planned_to_json(planned)), (html_file, planned_page(planned))):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UserError(f"{file} cannot be written: {reason}") from None
    return json_file, html_file
