"""The reference of the knobs as Markdown: one table, made from the knobs and rules themselves.

`python -m search_spaces.knobs.reference > docs/knobs.md` renews it; a test holds it up to date.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator

from search_spaces.knobs.labels import WORDS, KnobLabels
from search_spaces.knobs.registry import KNOBS, Knob, always
from search_spaces.plan import CHOICES, DEFAULTS, NAMES
from search_spaces.rules.base import Rule
from search_spaces.rules.registry import RULES, knob_at_default

_HEAD = f"""\
# The knobs

Every knob of a plan: what turning it trades, which engines have it, whether it is lossless (the
same training, only faster, slower, larger or smaller) or lossy, which rules refuse values of it,
and what the worker does with it. Each can be named in the section `space` of a specification
(`docs/spec.md`) with the values to search; where none are named,
`search_spaces/knobs/search_defaults.py` says what is searched. Lossy values are searched only where
they are named, and are labelled in every
table, run and report.

A knob that changes nothing given the others (its row says when it matters) stands at its rest,
the value in bold, so that no plan has two names: the rule `{knob_at_default.__name__}` refuses
others. `accumulation` is no knob: it follows from `train.global_batch`, `micro_batch` and `data`,
and the rule `global_batch_is_kept` holds it.

This page is made from the code (`python -m search_spaces.knobs.reference > docs/knobs.md`).

"""
_COLUMNS = (
    "knob",
    "values",
    "trades",
    "engines",
    "lossless or lossy",
    "matters",
    "rules",
    "what the worker does with it",
)


def knobs_reference() -> str:
    """The page: a head and a row for each knob, in the order in which a plan is chosen."""
    lines = [_COLUMNS, ("---",) * len(_COLUMNS), *(tuple(_cells(knob)) for knob in KNOBS)]
    return _HEAD + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cells(knob: Knob) -> Iterator[str]:
    words = WORDS[knob.name]
    yield f"`{knob.name}`"
    yield _values(knob.name)
    yield words.trades
    yield words.engines
    yield f"lossy: {words.lossy}" if words.lossy else "lossless"
    yield _matters(knob, words)
    yield ", ".join(f"`{rule}`" for rule in rules_of(knob.name)) or "none"
    yield words.does


def _values(name: str) -> str:
    rest = DEFAULTS.get(name)
    if name in CHOICES:
        return ", ".join(
            f"**{_word(value)}**" if name in DEFAULTS and value == rest else _word(value)
            for value in CHOICES[name]
        )
    if name in NAMES:
        return f"names in `cluster.{name}s`, **none**"
    kind = "0.0 to 1.0" if name == "checkpoint_ratio" else "counts"
    return f"{kind}, **{rest}**" if name in DEFAULTS else kind


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _matters(knob: Knob, words: KnobLabels) -> str:
    return "always" if knob.is_active is always else words.is_active


def rules_of(name: str) -> Iterator[str]:
    """The rules that read a knob, by name, in the order in which they are asked."""
    return (rule for rule, check in RULES.items() if name in _read_by(check))


def _read_by(rule: Rule) -> set[str]:
    """The knobs that a rule reads: what its source takes from `plan`."""
    return {
        node.attr
        for node in ast.walk(ast.parse(inspect.getsource(rule)))
        if isinstance(node, ast.Attribute)
        if isinstance(node.value, ast.Name) and node.value.id == "plan"
    }


if __name__ == "__main__":
    sys.stdout.write(knobs_reference())
