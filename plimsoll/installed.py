"""The installed distributions: what collides with this one, and which versions are untested.

Imports nothing of ours: a colliding distribution may have overwritten any of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib import metadata

DISTRIBUTION = "plimsoll-tune"
PACKAGES = ("orchestrator", "plimsoll", "search_spaces", "workers")
_DEVELOPMENT = "dev"  # an extra whose tools take no part in a run


def collisions(path: list[str] | None = None) -> str:
    """Names in a sentence the distributions that install a package of the same name as ours.

    Of two distributions with one package, pip lets the later overwrite files of the earlier.

    Args:
        path: Folders to look in; those that Python imports from if None.

    Returns:
        The sentence, empty if there are none.
    """
    others: dict[str, set[str]] = {}
    for distribution in _distributions(path):
        name = _normal(distribution.name)
        if name != DISTRIBUTION and (shared := set(PACKAGES) & _top_level(distribution)):
            others.setdefault(name, set()).update(shared)
    if not others:
        return ""
    told = " and ".join(f"{name} ({', '.join(sorted(others[name]))})" for name in sorted(others))
    names = " ".join(sorted(others))
    return (
        f"{DISTRIBUTION} shares an environment with {told}, which installs packages of the same"
        f" name, and each overwrites files of the other; `pip uninstall {names}`, then `pip"
        f" install --force-reinstall --no-deps {DISTRIBUTION}`, or give each an environment of"
        " its own"
    )


def unsupported_versions(path: list[str] | None = None) -> str:
    """Names in a sentence the installed packages outside the versions that pyproject.toml allows.

    Args:
        path: As for `collisions`.

    Returns:
        The sentence, empty if all are within them.
    """
    installed = {_normal(found.name): found for found in reversed([*_distributions(path)])}
    ours = installed.get(DISTRIBUTION)
    outside = () if ours is None else tuple(_outside(ours.requires or (), installed))
    if not outside:
        return ""
    return f"note: not tested with {', '.join(outside)}; results and failures may be strange"


def _outside(
    requirements: Iterable[str], installed: dict[str, metadata.Distribution]
) -> Iterator[str]:
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.version import InvalidVersion

    for text in requirements:
        try:
            wanted = Requirement(text)
            found = installed.get(_normal(wanted.name))
            # extras name themselves, without versions; a nightly build counts as what it precedes
            if found is None or wanted.specifier.contains(found.version, prereleases=True):
                continue
        except (InvalidRequirement, InvalidVersion):  # of somebody's own build: nothing to compare
            continue
        if wanted.marker and f'extra == "{_DEVELOPMENT}"' in str(wanted.marker):
            continue
        yield f"{wanted.name} {found.version} ({wanted.specifier} is)"


def _distributions(path: list[str] | None) -> Iterator[metadata.Distribution]:
    """Those with a name; a half-removed package leaves a folder without one."""
    found = metadata.distributions() if path is None else metadata.distributions(path=path)
    return (distribution for distribution in found if distribution.metadata["Name"])


def _top_level(distribution: metadata.Distribution) -> set[str]:
    """Its top-level packages; by `top_level.txt`, else by the files that it lists.

    `importlib.metadata.packages_distributions` tells the same of all and takes ten times as long.
    """
    if (listed := distribution.read_text("top_level.txt")) is not None:
        return set(listed.split())
    files = distribution.read_text("RECORD") or ""
    return {line.partition("/")[0] for line in files.splitlines() if "/" in line}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
