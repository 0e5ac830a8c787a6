"""Runnable examples: a specification, and the text that it trains on."""

from __future__ import annotations

from importlib.resources import files

from search_spaces.errors import UserError

EXAMPLES = ("demo",)
TEXT_FILE = "topics.txt"
_HERE = "search_spaces.spec"


def example_files(name: str) -> dict[str, str]:
    """The texts of an example by file name; its specification is `NAME.yaml`.

    Raises:
        UserError: If there is no such example.
    """
    if name not in EXAMPLES:
        raise UserError(f"--example is {name!r}, the examples are {', '.join(EXAMPLES)}")
    spec = (files(_HERE) / "examples" / f"{name}.yaml").read_text("utf-8")
    return {f"{name}.yaml": spec, TEXT_FILE: demo_text()}


def demo_text() -> str:
    """The topics of Python's own help: real English, in paragraphs of real lengths."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name].strip() for name in sorted(topics)) + "\n"
