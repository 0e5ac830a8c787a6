"""Checks of the installed distributions: colliding packages and untested versions.

It imports no other module of Plimsoll, since a colliding distribution may have overwritten it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib import metadata
from typing import Any

DISTRIBUTION = "plimsoll-tune"
PACKAGES = ("orchestrator", "plimsoll", "search_spaces", "workers")
_DEVELOPMENT = "dev"  # the extra with tools that no run uses


def collisions(path: list[str] | None = None) -> str:
    """Finds distributions that install a package with the name of one of Plimsoll's.

    If two distributions have the same package, pip overwrites files of the first with those of the
    second.

    Args:
        path: Folders to search; None: those that Python imports from.

    Returns:
        One sentence that names them, empty if there are none.
    """
    others: dict[str, set[str]] = {}
    for distribution in metadata.distributions(**_searched(path)):
        # parsing a distribution's metadata takes a millisecond, and there are hundreds
        if shared := set(PACKAGES) & _top_level(distribution):
            name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or DISTRIBUTION).lower()
            if name != DISTRIBUTION:
                others.setdefault(name, set()).update(shared)
    if not others:
        return ""
    owners = " and ".join(f"{name} ({', '.join(sorted(others[name]))})" for name in sorted(others))
    names = " ".join(sorted(others))
    return (
        f"{DISTRIBUTION} shares an environment with {owners}, which installs packages of the same"
        f" name, and each overwrites files of the other; `pip uninstall {names}`, then `pip"
        f" install --force-reinstall --no-deps {DISTRIBUTION}`, or give each its own"
        " environment"
    )


def unsupported_versions(path: list[str] | None = None) -> str:
    """Finds installed packages outside the versions that pyproject.toml allows.

    Args:
        path: Folders to search; None: those that Python imports from.

    Returns:
        One sentence that names them, empty if all versions are allowed.
    """
    own = _installed(DISTRIBUTION, path)
    untested = () if own is None else tuple(_untested(own.requires or (), path))
    if not untested:
        return ""
    return f"note: not tested with {', '.join(untested)}; results and failures may be unusual"


def _untested(requirements: Iterable[str], path: list[str] | None) -> Iterator[str]:
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.version import InvalidVersion

    for text in requirements:
        try:
            requirement = Requirement(text)
            package = _installed(requirement.name, path)
            # extras name the distribution itself, without versions; a nightly build counts as the
            # release that it precedes
            if package is None or requirement.specifier.contains(package.version, prereleases=True):
                continue
        except (InvalidRequirement, InvalidVersion):  # a custom build: nothing to compare
            continue
        if requirement.marker and f'extra == "{_DEVELOPMENT}"' in str(requirement.marker):
            continue
        yield f"{requirement.name} {package.version} (tested: {requirement.specifier})"


def _installed(name: str, path: list[str] | None) -> metadata.Distribution | None:
    found = metadata.distributions(name=name, **_searched(path))
    # a half-removed package leaves a folder without a name
    return next((each for each in found if each.metadata["Name"]), None)


def _searched(path: list[str] | None) -> dict[str, Any]:
    return {} if path is None else {"path": path}


def _top_level(distribution: metadata.Distribution) -> set[str]:
    # `importlib.metadata.packages_distributions` finds those of all, and takes ten times as long
    if (names := distribution.read_text("top_level.txt")) is not None:
        return set(names.split())
    files = distribution.read_text("RECORD") or ""
    return {line.partition("/")[0] for line in files.splitlines() if "/" in line}
