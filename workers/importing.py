"""Where a user's own modules are found."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def importable_from_here() -> Iterator[None]:
    """Modules in the current directory can be imported, as under `python -m`."""
    here = str(Path.cwd())
    if here in sys.path:
        yield
        return
    sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(here)
