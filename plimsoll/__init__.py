"""The public API: `load_best` returns the best plan of a study, ready to apply to a model.

Names are imported when they are asked for: the command checks the installed packages first.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.api import TunedPlan, load_best

__all__ = ["TunedPlan", "load_best"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from orchestrator import api

    return getattr(api, name)
