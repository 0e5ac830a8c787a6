"""Check of the installed distributions for colliding packages.

It imports no other module of Plimsoll, since a colliding distribution may have overwritten it.
"""

import re
from importlib import metadata

DISTRIBUTION = "plimsoll-tune"
PACKAGES = ("orchestrator", "plimsoll", "search_spaces", "workers")


def collisions() -> str:
    """Finds distributions that install a package with the name of one of Plimsoll's.

    If two distributions have the same package, pip overwrites files of the first with those of the
    second.

    Returns:
        One sentence that names them, empty if there are none.
    """
    others: dict[str, set[str]] = {}
    for distribution in metadata.distributions():
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


def _top_level(distribution: metadata.Distribution) -> set[str]:
    # `importlib.metadata.packages_distributions` finds those of all, and takes ten times as long
    if (names := distribution.read_text("top_level.txt")) is not None:
        return set(names.split())
    files = distribution.read_text("RECORD") or ""
    return {line.partition("/")[0] for line in files.splitlines() if "/" in line}
