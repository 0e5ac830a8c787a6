"""Optional packages: the extra that installs each, and the one sentence about a missing one.

`docs/decisions/0026-extras.md` says which package belongs to which extra, and why.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from search_spaces.errors import MissingExtraError

DISTRIBUTION = "plimsoll-tune"  # the name on PyPI; the command is `plimsoll`


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionalPackage:
    """A package that only some features need.

    `module` is what is imported, `title` how its project writes its name, `extra` the extra of
    `plimsoll-tune` that installs it, `serves` the features.
    """

    module: str
    title: str
    extra: str
    serves: str


OPTIONAL_PACKAGES = (
    OptionalPackage(module="ray", title="Ray", extra="ray", serves="tune, record, submit"),
    OptionalPackage(
        module="optuna", title="Optuna", extra="ray", serves="every command on a study"
    ),
    OptionalPackage(
        module="sqlalchemy", title="SQLAlchemy", extra="ray", serves="the study's storage"
    ),
    OptionalPackage(module="mlflow", title="MLflow", extra="mlflow", serves="tracking, ui, sync"),
    OptionalPackage(
        module="psycopg", title="psycopg", extra="postgres", serves="PostgreSQL databases"
    ),
    OptionalPackage(
        module="deepspeed", title="DeepSpeed", extra="deepspeed", serves="engine deepspeed"
    ),
    OptionalPackage(module="peft", title="PEFT", extra="lora", serves="train.method lora"),
    OptionalPackage(
        module="bitsandbytes", title="bitsandbytes", extra="8bit", serves="optimizer adamw_8bit"
    ),
    OptionalPackage(module="boto3", title="boto3", extra="s3", serves="MLflow's artifacts in S3"),
)
_BY_MODULE = {package.module: package for package in OPTIONAL_PACKAGES}


def extra_lack(module: str) -> str | None:
    """Says in a sentence that an optional package is missing; None if it is installed.

    Looks for the package without importing it.

    Args:
        module: One of those in `OPTIONAL_PACKAGES`.
    """
    if importlib.util.find_spec(module) is not None:
        return None
    package = _BY_MODULE[module]
    return f"{package.title} is not installed; `{install_command(package.extra)}` brings it"


def require(*modules: str) -> None:
    """Refuses to go on without optional packages, where a feature first needs them.

    Raises:
        MissingExtraError: If one is not installed, with the command that installs it.
    """
    for module in modules:
        if (lack := extra_lack(module)) is not None:
            raise MissingExtraError(lack)


def install_command(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
