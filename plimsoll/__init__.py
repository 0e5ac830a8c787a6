"""The public API (docs/python.md): run sweeps, and use what they found.

Names are imported when they are asked for: the command checks the installed packages first.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.api import TunedPlan, load_best
    from plimsoll.calls import check, open_study, plan, tune
    from plimsoll.results import Report, Sweep
    from search_spaces.errors import UserError as PlimsollError
    from search_spaces.specification.schema import SweepSpec

__all__ = ["PlimsollError", "Report", "Sweep", "SweepSpec", "TunedPlan", "check", "load_best"]
__all__ += ["open_study", "plan", "tune"]
_MODULES = {"TunedPlan": "orchestrator.api", "load_best": "orchestrator.api"}
_MODULES |= {"Report": "plimsoll.results", "Sweep": "plimsoll.results"}
_MODULES |= {"UserError": "search_spaces.errors"}
_MODULES |= {"SweepSpec": "search_spaces.specification.schema"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    own = name.replace("PlimsollError", "UserError")
    return getattr(import_module(_MODULES.get(own, "plimsoll.calls")), own)
