"""Reference of the knobs as Markdown tables, generated from the knobs and rules.

`python docs/knobs.py > docs/knobs.md` regenerates it; a test checks that it is up to date.
"""

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping

from search_spaces.knobs.communication import COMMUNICATION
from search_spaces.knobs.computation import COMPUTATION
from search_spaces.knobs.knob import Knob
from search_spaces.knobs.memory import MEMORY
from search_spaces.knobs.parallelism import PARALLELISM
from search_spaces.knobs.process import PROCESS
from search_spaces.plan import CHOICES, DEFAULTS, SHARES
from search_spaces.rules.base import Rule
from search_spaces.rules.compute import training_step_runs
from search_spaces.rules.registry import RULES, knob_at_default
from search_spaces.safety.files import packaged_table

_HEAD = f"""\
# The knobs

The section `space` of a specification (`docs/spec.md`) names the values to search;
`search_spaces/knobs/search_defaults.py` chooses the others. Lossy values are searched only if you
name them. Of a knob that is not forecast, only trials show the effect.

A knob that changes nothing, given the others, has its default, in bold
(`{knob_at_default.__name__}`). `accumulation` follows from `train.global_batch`, `micro_batch` and
`data`. A rule stands with the last knob that it reads. On CPUs, `{training_step_runs.__name__}`
rejects models whose step fails on this machine.

This page is generated: `python docs/knobs.py > docs/knobs.md`
"""
_GROUPS = {
    "Parallelism": PARALLELISM,
    "Memory": MEMORY,
    "Computation": COMPUTATION,
    "Communication": COMMUNICATION,
    "Loader and process": PROCESS,
}


def knobs_reference() -> str:
    """Returns the page: a heading for each group and knob, in the order of the search tree."""
    return _HEAD + "".join(
        f"\n## {name}\n" + "".join(map(_entry, knobs)) for name, knobs in _GROUPS.items()
    )


def _entry(knob: Knob) -> str:
    return f"\n### `{knob.name}`\n\n" + "".join(f"- {line}\n" for line in _lines(knob))


def _lines(knob: Knob) -> Iterator[str]:
    words = words_on(knob)
    yield "; ".join((f"values: {_values(knob.name)}", *_conditions(knob, words)))
    yield f"{_sentence(words['trades'])} {_sentence(words['does'])}"
    if evidence := words.get("evidence"):
        yield _sentence(evidence)
    if rules := ", ".join(f"`{rule}`" for rule in rules_of(knob.name) if _ends(rule, knob)):
        yield f"rules: {rules}"


def _ends(rule: str, knob: Knob) -> bool:
    """Returns True if a rule reads no knob that comes later."""
    names = [each.name for knobs in _GROUPS.values() for each in knobs]
    return not _knobs_read_by(RULES[rule]) & {*names[names.index(knob.name) + 1 :]}


def _sentence(words: str) -> str:
    """Returns words as a sentence; a value of a knob that begins them stays as it is."""
    is_value = any(words.split(maxsplit=1)[0] in map(str, values) for values in CHOICES.values())
    return f"{words if is_value else words[0].upper() + words[1:]}."


def words_on(knob: Knob) -> Mapping[str, str]:
    """Returns what descriptions.yaml says of a knob."""
    words: Mapping[str, str] = packaged_table("search_spaces.knobs", "descriptions.yaml")[knob.name]
    return words


def _conditions(knob: Knob, words: Mapping[str, str]) -> Iterator[str]:
    engine, active = words.get("engine"), words.get("active")
    if engine and f"engine {engine}" not in (active or ""):
        yield f"engine {engine}"
    if active:
        yield active
    if lossy := words.get("lossy_values"):
        yield f"lossy: {lossy}"
    if not knob.forecast:
        yield "not forecast"


def _values(name: str) -> str:
    default = DEFAULTS.get(name)
    if name in CHOICES:
        return ", ".join(
            f"**{_text(value)}**" if name in DEFAULTS and value == default else _text(value)
            for value in CHOICES[name]
        )
    kind = "0.0 to 1.0" if name in SHARES else "counts"
    return f"{kind}, **{default}**" if name in DEFAULTS else kind


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def rules_of(name: str) -> Iterator[str]:
    """Yields the names of the rules that read a knob, in the order in which they apply."""
    return (rule for rule, check in RULES.items() if name in _knobs_read_by(check))


def _knobs_read_by(rule: Rule) -> set[str]:
    """Returns the attributes of `plan` in a rule's source."""
    return {
        node.attr
        for node in ast.walk(ast.parse(inspect.getsource(rule)))
        if isinstance(node, ast.Attribute)
        if isinstance(node.value, ast.Name) and node.value.id == "plan"
    }


if __name__ == "__main__":
    sys.stdout.write(knobs_reference())
