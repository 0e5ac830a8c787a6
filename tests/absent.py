"""Packages hidden from a Python process and its children, as if they had not been installed."""

import os
from collections.abc import Collection
from pathlib import Path

# every optional package of pyproject.toml, by the module that it installs
OPTIONAL = frozenset(
    ("ray", "mlflow", "optuna", "sqlalchemy", "psycopg", "deepspeed", "bitsandbytes", "peft")
) | {"accelerate", "boto3", "greenlet", "mcp", "pyarrow", "torchao", "torch_tpu"}

_SITECUSTOMIZE = """
import sys
from importlib.machinery import PathFinder

ABSENT = set({absent})


class Present(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in ABSENT else super().find_spec(name, path, target)

    @classmethod
    def find_distributions(cls, *given, **more):
        found = super().find_distributions(*given, **more)
        return (one for one in found if (one.metadata["Name"] or "").lower() not in ABSENT)


sys.meta_path[sys.meta_path.index(PathFinder)] = Present
"""


def environment_without(absent: Collection[str], folder: Path) -> dict[str, str]:
    """The environment of a process in which some packages cannot be found.

    `sitecustomize.ABSENT` is the set of them, which the process can change.

    Args:
        absent: Top-level modules.
        folder: An empty folder for what Python runs when it starts.
    """
    (folder / "sitecustomize.py").write_text(_SITECUSTOMIZE.format(absent=sorted(absent)))
    here = Path(__file__).parent.parent
    path = os.pathsep.join([str(folder), str(here), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "", "OMP_NUM_THREADS": "1"}
