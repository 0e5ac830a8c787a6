"""The public API (docs/python.md): run sweeps, and use what they found.

Names are imported when they are asked for: the command checks the installed packages first.
"""

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.api import TunedPlan, load_best
    from plimsoll.calls import check, open_study, plan, tune
    from plimsoll.results import Report, Sweep
    from search_spaces.errors import UserError as PlimsollError
    from search_spaces.specification.schema import SweepSpec

_HOMES = {  # module of each name, and its name there
    "PlimsollError": ("search_spaces.errors", "UserError"),
    "Report": ("plimsoll.results", "Report"),
    "Sweep": ("plimsoll.results", "Sweep"),
    "SweepSpec": ("search_spaces.specification.schema", "SweepSpec"),
    "TunedPlan": ("orchestrator.api", "TunedPlan"),
    "check": ("plimsoll.calls", "check"),
    "load_best": ("orchestrator.api", "load_best"),
    "open_study": ("plimsoll.calls", "open_study"),
    "plan": ("plimsoll.calls", "plan"),
    "tune": ("plimsoll.calls", "tune"),
}
__all__ = [
    "PlimsollError",
    "Report",
    "Sweep",
    "SweepSpec",
    "TunedPlan",
    "check",
    "load_best",
    "open_study",
    "plan",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, own = _HOMES[name]
    # what tqdm says in a notebook without ipywidgets, with which nothing is drawn
    warnings.filterwarnings("ignore", "IProgress not found")
    return getattr(import_module(module), own)
