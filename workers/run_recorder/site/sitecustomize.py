"""Start-up hook of each Python process of a recorded run: Python imports a module of this name.

It registers the recorders for torch and for uncaught exceptions, then runs the machine's own
`sitecustomize`.
"""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

from wrapt import register_post_import_hook

from workers.run_recorder.failures import record_failures

_HERE = str(Path(__file__).parent)

if _folder := os.environ.get("PLIMSOLL_RUN_RECORDER"):
    record_failures(Path(_folder))
register_post_import_hook("workers.run_recorder.step_recorder:record_steps", "torch")

_others = [entry for entry in sys.path if entry != _HERE]
_own = importlib.machinery.PathFinder.find_spec("sitecustomize", _others)
if _own is not None and _own.loader is not None:
    _own.loader.exec_module(importlib.util.module_from_spec(_own))
