"""Which device a name means: drivers, shops and papers each spell it in their own way."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from search_spaces.errors import UserError

# makers, families and what every card is: they tell no two devices apart
_MAKERS = ("nvidia", "amd", "tesla", "geforce", "instinct")
_NOISE = frozenset((*_MAKERS, "gpu", "tensor", "core", "generation", "card", "gb", "gib"))
_MEMORY = re.compile(r"^(\d+)(?:gi?b?)$")
_FORM = re.compile(r"^(sxm|oam|pcie)\d*$")


class DeviceError(UserError):
    """A device that nobody knows; the message names the nearest ones."""


def words_of(name: str) -> frozenset[str]:
    """What a name says, in no order: `A100-40GB-SXM` and `NVIDIA A100-SXM4-40GB` say the same.

    What stands in parentheses is a remark.
    """
    plain = re.sub(r"\([^)]*\)", " ", name.casefold())
    words = re.findall(r"[a-z0-9]+", plain)
    found = (_MEMORY.sub(r"\1", _FORM.sub(r"\1", word)) for word in words)
    return frozenset(word for word in found if word not in _NOISE)


def unknown_device(name: str, known: Iterable[tuple[str, tuple[str, ...]]]) -> DeviceError:
    """The error for a name that none of the known devices (name, aliases) bears."""
    spellings: dict[str, str] = {}
    for canonical, aliases in known:
        for spelling in (canonical, *aliases):
            spellings.setdefault(_key(spelling), canonical)
    near = difflib.get_close_matches(_key(name), spellings, n=3, cutoff=0.0)
    nearest = list(dict.fromkeys(spellings[key] for key in near))
    return DeviceError(
        f"no device is known as {name!r}; the nearest are {_listed(nearest)}"
        " (a device of your own is described in a YAML file, see docs/hardware.md)"
        if nearest
        else f"no device is known as {name!r}"
    )


def _key(name: str) -> str:
    return " ".join(sorted(words_of(name)))


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
