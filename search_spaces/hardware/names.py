"""Names of devices: normalizes the spellings of drivers, shops and papers."""

import difflib
import re
from collections.abc import Iterable

from search_spaces.errors import UserError

# makers, families and generic words: they do not distinguish devices
_MAKERS = ("nvidia", "amd", "tesla", "geforce", "instinct")
_NOISE = frozenset((*_MAKERS, "gpu", "tensor", "core", "generation", "card", "gb", "gib"))
_MEMORY = re.compile(r"^(\d+)(?:gi?b?)$")
_FORM = re.compile(r"^(sxm|oam|pcie)\d*$")


class DeviceError(UserError):
    """An unknown device; the message names the closest known ones."""


def words_of(name: str) -> frozenset[str]:
    """Returns the significant words of a name, in no order.

    `A100-40GB-SXM` and `NVIDIA A100-SXM4-40GB` have the same words. Text in parentheses is ignored.
    """
    plain = re.sub(r"\([^)]*\)", " ", name.casefold())
    words = re.findall(r"[a-z0-9]+", plain)
    normalized = (_MEMORY.sub(r"\1", _FORM.sub(r"\1", word)) for word in words)
    return frozenset(word for word in normalized if word not in _NOISE)


def unknown_device(name: str, known: Iterable[tuple[str, tuple[str, ...]]]) -> DeviceError:
    """Returns the error for a name that no known device (name, aliases) has."""
    spellings: dict[str, str] = {}
    for canonical, aliases in known:
        for spelling in (canonical, *aliases):
            spellings.setdefault(_key(spelling), canonical)
    near = difflib.get_close_matches(_key(name), spellings, n=3, cutoff=0.0)
    nearest = list(dict.fromkeys(spellings[key] for key in near))
    return DeviceError(
        f"unknown device {name!r}; the nearest are {', '.join(nearest)}"
        " (describe your own device in a YAML file, see docs/plan.md)"
    )


def _key(name: str) -> str:
    return " ".join(sorted(words_of(name)))
