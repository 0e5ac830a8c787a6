"""Writes the demo's text: the topics of Python's own help, real English of real lengths."""

from __future__ import annotations

from pathlib import Path
from pydoc_data.topics import topics

TARGET = Path(__file__).parent / "data" / "topics.txt"


def main() -> None:
    """Writes the file, unless it is there and the same."""
    text = "\n\n".join(topics[name].strip() for name in sorted(topics)) + "\n"
    if TARGET.is_file() and TARGET.read_text(encoding="utf-8") == text:
        return
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(text, encoding="utf-8")
    paragraphs = text.count("\n\n") + 1
    print(f"Wrote {paragraphs:,} paragraphs of English to {TARGET}")


if __name__ == "__main__":
    main()
