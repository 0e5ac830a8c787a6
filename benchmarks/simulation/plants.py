"""Faults planted in controller and study, each of which the simulation has to find.

`plants.yaml` has them.
"""

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import yaml


@dataclass(frozen=True)
class Plant:
    """A fault: a passage of a module, and what it is replaced by."""

    name: str
    module: str
    old: str
    new: str


_FILE = Path(__file__).with_suffix(".yaml")
PLANTS = tuple(Plant(**fault) for fault in yaml.safe_load(_FILE.read_text("utf-8")))


def plant(fault: Plant) -> None:
    """Plants a fault in this process.

    Raises:
        ValueError: If the passage is not in the module once.
    """
    module = importlib.import_module(fault.module)
    assert module.__file__ is not None
    source = Path(module.__file__).read_text("utf-8")
    if source.count(fault.old) != 1:
        raise ValueError(f"{fault.name}: the passage occurs {source.count(fault.old)} times")
    before = dict(vars(module))
    exec(compile(source.replace(fault.old, fault.new), module.__file__, "exec"), vars(module))  # noqa: S102
    replaced = {
        id(value): vars(module)[name]
        for name, value in before.items()
        if getattr(value, "__module__", None) == module.__name__
    }
    for value in before.values():
        if isinstance(value, type) and id(value) in replaced:
            heirs: list[type] = value.__subclasses__()
            for heir in heirs:
                heir.__bases__ = tuple(replaced.get(id(base), base) for base in heir.__bases__)
    for other in list(sys.modules.values()):
        if isinstance(other, ModuleType) and other.__name__.startswith(("orchestrator", "bench")):
            for name, value in list(vars(other).items()):
                if id(value) in replaced and other is not module:
                    setattr(other, name, replaced[id(value)])
