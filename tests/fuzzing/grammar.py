"""Grammar of what a user may type: specifications, paths, studies, options and their values."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from hypothesis import strategies as st
from pydantic import BaseModel

from search_spaces.specification.schema import SweepSpec
from search_spaces.specification.sections import section_of

SMALL: Mapping[str, Any] = {
    "model": {"name": "gpt2", "config": {"n_layer": 2, "n_embd": 64, "n_head": 2}},
    "cluster": {"device": "cpu", "workers": 2, "memory_gib": 1.0},
    "train": {"global_batch": 8, "sequence_length": 64},
    "space": {"micro_batch": [1, 2], "zero_stage": [0], "checkpoint_ratio": [0.0]},
}
ODD_TEXTS = (
    *("", " ", "\x00", "\x1b[2J", "\u202eevil", "a\nb: 1", "x" * 300, "y" * 5000, "-", "--json"),
    *("~", "null", "1e-4", "0x10", "1_000", "٤", "é" * 200, "😀", "{{7*7}}", "%s", "../..", "C:\\"),
    *("&a [*a]", "!!python/object:os.system", "*x", "[" * 60, "a: b: c", "\t- x", "# only", "|"),
)
NUMBERS = (
    *(0, 1, -1, 2, 7, 2**31, 2**63, -(2**63), 10**400, 1e300, -1e300, 1e-300, 0.5, 1e308),
    *(float("inf"), float("-inf"), float("nan"), True, False),
)
PATHS = (
    *("small.yaml", "plimsoll-runs/demo", "plimsoll-runs/demo/study.db", "demo", "missing.yaml"),
    *("pipe", "pipe.yaml", "pipe.jsonl", "socket", "folder", "loop", "dangling", "large.yaml"),
    *("empty.yaml", "binary.yaml", "plan.json", "deep.json", "half.db", "journal.jsonl", "."),
    *("/dev/zero", "/dev/urandom", "/dev/full", "/dev/null", "/dev/tty", "/proc/self/mem", "/"),
    *("zero.yaml", "zero.jsonl", "zero.json", "folder/" + "n" * 300, "small.yaml/below", "\x00"),
)
ADDRESSES = (
    *("sqlite:///plimsoll-runs/demo/study.db", "sqlite:///half.db", "sqlite:///pipe", "sqlite://"),
    *("sqlite:////dev/zero", "sqlite:///folder", "sqlite:///file:x?mode=memory&uri=true", "://"),
    *("sqlite:///new.db#demo", "postgresql://a:b@127.0.0.1:1/x", "postgresql://[::1", "mysql://x"),
    *("sqlite:///plimsoll-runs/demo/study.db#other", "http://127.0.0.1:1", "x+y://z", "sqlite:///"),
)
TEXT = st.sampled_from(ODD_TEXTS) | st.text(st.characters(codec="utf-8"), max_size=30)
LEAF = TEXT | st.sampled_from(NUMBERS) | st.none() | st.sampled_from(PATHS + ADDRESSES)
VALUE = LEAF | st.lists(LEAF, max_size=3) | st.dictionaries(TEXT, LEAF, max_size=2)
PATH = st.sampled_from(PATHS) | TEXT
STUDY = st.sampled_from(PATHS + ADDRESSES) | TEXT
KNOB = st.sampled_from(("micro_batch", "zero_stage", "engine", "tensor", "checkpoint_ratio"))
WORD = st.builds("{}={}".format, KNOB | TEXT, st.sampled_from(NUMBERS) | TEXT)


def keys(section: type[BaseModel] = SweepSpec, above: str = "") -> dict[str, str]:
    """Returns all keys of a specification, sections included, as `train.global_batch`.

    Returns:
        The type of each, as Python writes it.
    """
    found = {}
    for name, field in section.model_fields.items():
        found[above + name] = str(field.annotation)
        if (below := section_of(field)) is not None:
            found |= keys(below, f"{above}{name}.")
    return found


KEYS = keys()
_NUMERIC = re.compile(r"\b(int|float)\b")


@st.composite
def changes(draw: st.DrawFn) -> tuple[str, Any]:
    """Draws a key and an odd value; of a number mostly a number."""
    key = draw(st.sampled_from(sorted(KEYS)) | TEXT)
    if _NUMERIC.search(KEYS.get(key, "")) and draw(st.integers(0, 3)):
        number = st.sampled_from(NUMBERS)
        return key, draw(number | st.lists(number, max_size=3))
    return key, draw(VALUE)


OVERRIDE = changes().map(lambda change: f"{change[0]}={change[1]}")


@st.composite
def specifications(draw: st.DrawFn) -> bytes:
    """Draws a specification with some odd values, sometimes cut, spliced or no YAML at all."""
    tree = {name: dict(section) for name, section in SMALL.items()}
    for key, value in draw(st.lists(changes(), max_size=3)):
        _put(tree, key.split("."), value)
    content = yaml.safe_dump(tree, allow_unicode=True).encode("utf-8", "replace")
    match draw(st.integers(0, 9)):
        case 0:
            cut = draw(st.integers(0, len(content)))
            return content[:cut] + draw(st.binary(max_size=20))
        case 1:
            cut = draw(st.integers(0, len(content)))
            return content[:cut] + draw(TEXT).encode() + content[cut:]
        case 2:
            return draw(st.binary(max_size=60) | TEXT.map(str.encode))
    return content


def _put(tree: dict[str, Any], parts: list[str], value: Any) -> None:
    first, *rest = parts
    if rest and isinstance(tree.get(first, {}), dict):
        _put(tree.setdefault(first, {}), rest, value)
    else:
        tree[first] = value


@dataclass(frozen=True)
class Command:
    """Positional arguments and options that a command takes, each with its values.

    Attributes:
        positional: Strategies of arguments, and whether the command runs for long if all are valid.
        options: Strategy by option; None for a switch.
        odd: True if the command gets no valid specification or study: it would begin its work.
    """

    positional: tuple[st.SearchStrategy[str], ...]
    options: Mapping[str, st.SearchStrategy[Any] | None]
    odd: bool = False


_VALID = ("small.yaml", "plimsoll-runs/demo", "plimsoll-runs/demo/study.db", "demo", ".", "")
BAD = st.sampled_from([path for path in PATHS if path not in _VALID])
_NUMBER = st.sampled_from(NUMBERS).map(str) | TEXT
_SWITCH = None
COMMANDS: Mapping[str, Command] = {
    "check": Command((PATH,), {"--set": OVERRIDE, "--json": _SWITCH}),
    "plan": Command(
        (PATH,),
        {
            **{"--gpu": st.sampled_from(("H100", "H100,A100", "cpu")) | TEXT, "--gpus": _NUMBER},
            **{"--gpus-per-node": _NUMBER, "--price": _NUMBER, "--plan": WORD},
            **{"--host-memory": _NUMBER},
            **{"--top": _NUMBER, "--records": STUDY, "--set": OVERRIDE},
            **{"--out": PATH, "--json": _SWITCH},
        },
    ),
    "tune": Command(
        (BAD,), {"--trials": _NUMBER, "--minutes": _NUMBER, "--events": _SWITCH}, odd=True
    ),
    "trial": Command((BAD,), {"--plan": PATH, "--json": _SWITCH}, odd=True),
    "submit": Command((BAD,), {"--address": TEXT, "--env": TEXT, "--retries": _NUMBER}, odd=True),
    "report": Command((STUDY,), {"--html": PATH, "--out": PATH, "--json": _SWITCH}),
    "explain": Command(
        (STUDY, WORD), {"--trial": _NUMBER, "--plan": WORD, "--out": PATH, "--json": _SWITCH}
    ),
    "export": Command(
        (STUDY,),
        {
            "--format": st.sampled_from(("torchrun", "accelerate", "deepspeed")) | TEXT,
            **{"--trial": _NUMBER, "--out": PATH, "--json": _SWITCH},
        },
    ),
    "verify": Command((BAD,), {"--steps": _NUMBER, "--minutes": _NUMBER}, odd=True),
    "ui": Command((BAD,), {"--port": _NUMBER}, odd=True),
    "init": Command(
        (PATH,), {"--example": TEXT, "--recipe": TEXT, "--all": _SWITCH, "--force": _SWITCH}
    ),
    "retry": Command((STUDY,), {"--trial": _NUMBER, "--crashed": _SWITCH, "--json": _SWITCH}),
    "models": Command((), {"--json": _SWITCH}),
}


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """Draws the words after `plimsoll`; `check` most often, since it reads a specification."""
    name = draw(st.sampled_from(("check", "check", "check", *COMMANDS)))
    command = COMMANDS[name]
    words = [name, *(draw(positional) for positional in command.positional)]
    if not command.odd and draw(st.integers(0, 19)) == 0:
        words.append(draw(TEXT))
    chosen = draw(st.lists(st.sampled_from(sorted(command.options)), max_size=3, unique=True))
    for option in chosen:
        values = command.options[option]
        words += [option] if values is None else [option, str(draw(values))]
    return [word.replace("\x00", "") if at == 0 else word for at, word in enumerate(words)]
