"""Words: the glossary's in code and documents, none that was retired."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("orchestrator", "workers", "search_spaces", "plimsoll", "benchmarks", "tests")
SOURCES = sorted(  # all but this file, which has to quote the words
    file
    for package in PACKAGES
    for file in (ROOT / package).rglob("*.py")
    if file != Path(__file__)
)
TEMPLATES = sorted((ROOT / "orchestrator").rglob("*.jinja"))
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "benchmarks").rglob("*.md")),
]
# a retired word and what the glossary has in its place
RETIRED = {
    "proof": "validation",
    "proven": "validated",
    "head-room": "headroom",
    "hopeless": "dominated",
    "likeness": "transfer",
    "sight": "observation",
    "fate": "explanation of a trial",
    "witness": "run recorder",
    "witnessed": "observed",
    "untold": "unstored",
    "surroundings": "rule context",
    "sureness": "deviation factor",
    "unlearned": "uncalibrated",
    "unsaid": "caveats",
    "rival": "competitor",
    "belief": "calibration",
    "believed": "expected",
    "conveyor": "pipeline runner",
    "doors": "addresses",
    "desk": "assignment queue",
    "mailbox": "group channel",
    "seat": "worker process",
    "bury": "clean up",
    "grounds": "contexts",
    "hoarder": "process that takes memory",
    "handover": "export runtime",
    "specimen": "traced model",
    "rehearse": "warm up",
}
# module stems that said what was done to something
RETIRED_STEMS = frozenset(
    {
        *("told", "taken", "asked", "shown", "sized", "stored", "planned", "explained", "taught"),
        *("witnessed", "looking", "riding", "wrapping", "placing", "losing", "reading", "making"),
        *("untold", "hopeless", "likeness", "sights", "endings", "reactions", "doubts", "fate"),
        *("latest", "places", "leftovers", "boxes", "passing", "keeping", "filling", "specimen"),
    }
)
# a docstring begins with a verb or a noun
NO_BEGINNING = frozenset(
    {
        *("what", "which", "whether", "how", "who", "where", "why", "when", "if", "whom", "whose"),
        *("by", "for", "from", "of", "to", "as", "in", "on", "with", "at", "so", "but", "and"),
        *("between", "after", "before", "without", "while", "because", "since", "under"),
    }
)


def words_of(text: str) -> Iterator[str]:
    """Words of a text in lower case; those of an identifier one by one."""
    for word in re.findall(r"[A-Za-z]+(?:-[A-Za-z]+)*", text.replace("_", " ")):
        yield from (word.lower(), word.lower().removesuffix("s"))
        yield from (part.lower() for part in re.findall(r"[A-Z][a-z]+", word))


def test_no_retired_word_comes_back() -> None:
    found = [
        f"{file.relative_to(ROOT)}: {word}, say {RETIRED[word]}"
        for file in (*SOURCES, *TEMPLATES, *PAGES)
        for word in sorted(set(words_of(file.read_text(encoding="utf-8"))) & RETIRED.keys())
    ]

    assert not found


def test_modules_are_named_for_what_they_hold() -> None:
    assert not [file for file in SOURCES if file.stem in RETIRED_STEMS]


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{node.body[0].lineno} {docstring.split()[0]}"
        for file in SOURCES
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (docstring := ast.get_docstring(node))
        and docstring.split()[0].strip("`,.:;").lower() in NO_BEGINNING
    ]

    assert not found
