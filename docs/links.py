"""Hook of mkdocs: a link out of the site becomes the path in the repository, which has to exist."""

import re
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./|internals/)[^)#\s]*)(?:#[^)\s]*)?\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Returns the page's text with links to files outside the site as words and paths.

    Raises:
        FileNotFoundError: The repository has no such file.
    """
    return _LINK.sub(_path_of, markdown)


def _path_of(link: re.Match[str]) -> str:
    words, target = link[1], (_ROOT / "docs" / link[2]).resolve(strict=True)
    path = target.relative_to(_ROOT).as_posix()
    return f"`{path}`" if words.strip("/") in (path, target.name) else f"{words} (`{path}`)"
