"""A plan as a person asks for it: some knobs by name, the rest as in another plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from search_spaces.domains import Values
from search_spaces.errors import UserError
from search_spaces.knobs import KNOBS
from search_spaces.outcome import Refused
from search_spaces.plan import CHOICES, COUNTS, NAMES, RESTS, Plan

_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_FED = "accumulation"


def knobs_asked(given: Iterable[str]) -> dict[str, Any]:
    """The knobs in `micro_batch=32`, `compile=true` and so on.

    Raises:
        UserError: If one is no knob, its value none that it can have, or it is given twice.
    """
    names = [knob.name for knob in KNOBS]
    found: dict[str, Any] = {}
    for word in (word for text in given for word in text.replace(",", " ").split()):
        name, sign, text = word.partition("=")
        if not sign:
            raise UserError(f"--plan {word!r} is no KNOB=VALUE, such as micro_batch=32")
        if name == _FED:
            raise UserError(
                "--plan accumulation is no knob: it follows from the global batch, micro_batch"
                " and data"
            )
        if name not in names:
            raise UserError(f"--plan {name!r} is no knob, the knobs are {', '.join(names)}")
        value = _value(name, text)
        if found.setdefault(name, value) != value:
            raise UserError(f"--plan names {name} twice, with {found[name]} and {value}")
    if not found:
        raise UserError("--plan needs at least one KNOB=VALUE, such as micro_batch=32")
    return found


def _value(name: str, text: str) -> Any:
    """What a knob's value is meant to be.

    Raises:
        UserError: If it can be none.
    """
    if name in NAMES:
        return text
    if name in COUNTS:
        if text.isdecimal() and len(text) <= 9 and int(text) >= COUNTS[name]:
            return int(text)
        raise UserError(
            f"--plan {name}={text}: must be a whole number from {COUNTS[name]} to 999999999"
        )
    if name in CHOICES:
        choices = CHOICES[name]
        for choice in choices:
            if str(choice).lower() == text.lower() or (
                isinstance(choice, bool) and _WORDS.get(text.lower()) is choice
            ):
                return choice
        raise UserError(f"--plan {name}={text}: must be one of {', '.join(map(str, choices))}")
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise UserError(f"--plan {name}={text}: must lie in 0.0 to 1.0")
    return share


def plan_asked(
    asked: Mapping[str, Any], like: Plan, domains: Mapping[str, Values], global_batch: int
) -> Plan | Refused:
    """The plan with these knobs, and the rest as in another one as far as it goes with them.

    What does not matter any more stands at rest; what begins to matter has its rest where that is
    searched, else the first value that is. Data ranks are those that tensor and pipeline leave,
    and with FSDP parameters go where the optimizer's states go. Refused if no whole number of
    micro-batches makes up the global batch.
    """
    chosen: dict[str, Any] = {}
    theirs = like.as_dict()
    for knob in KNOBS:
        name = knob.name
        if name in asked:
            chosen[name] = asked[name]
        elif not knob.matters(chosen):
            chosen[name] = RESTS[name]
        elif name == "data" and not asked.keys().isdisjoint(("tensor", "pipeline")):
            split = chosen["tensor"] * chosen["pipeline"]
            chosen[name] = max(like.world_size // split, 1)
        elif name == "offload_parameters" and chosen["engine"] == "torch":
            chosen[name] = chosen["offload_optimizer"]
        elif knob.matters(theirs):
            chosen[name] = theirs[name]
        else:
            searched = domains.get(name, ())
            rest = RESTS[name]
            chosen[name] = rest if rest in searched or not searched else searched[0]
    micro, data = chosen["micro_batch"], chosen["data"]
    accumulation, over = divmod(global_batch, micro * data)
    if over:
        detail = (
            f"the global batch of {global_batch} is no multiple of micro_batch {micro} x data"
            f" {data} = {micro * data}"
        )
        return Refused(rule="global_batch_is_kept", detail=detail)
    return Plan(**chosen, accumulation=accumulation)
