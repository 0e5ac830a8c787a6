"""Documents of reports, plans and explanations, without a medium: terminal and page render them."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of texts: titles, of which those of numbers begin with `#`, and rows, some in bold.

    Numbers are right-aligned and do not wrap; words are left-aligned.
    """

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    bold: Collection[int] = ()

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.titles) for row in self.rows)

    @property
    def columns(self) -> tuple[tuple[str, Literal["number", "words"]], ...]:
        """The title and the kind of each column."""
        return tuple(
            (title.removeprefix("#"), "number" if title.startswith("#") else "words")
            for title in self.titles
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Text to be copied or read as it is: a command, a specification, a traceback."""

    text: str


Block = str | Table | Code


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Sentences, tables and code under a heading, which may be empty.

    Attributes:
        chart: Name of a figure, which pages draw with `caption` above it.
        folded: Only pages have the section, folded.
    """

    title: str = ""
    blocks: tuple[Block, ...] = ()
    chart: str = ""
    caption: str = ""
    folded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A report: the answer in its headline, facts and notes about it, then sections."""

    title: str
    headline: str
    facts: tuple[str, ...] = ()
    understood: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()
    footer: str = ""

    @property
    def sentences(self) -> Iterator[str]:
        """Everything that is said outside of tables, the most important first."""
        yield from (self.headline, *self.notes)
        for section in self.sections:
            yield from (block for block in section.blocks if isinstance(block, str))
        yield from self.facts
