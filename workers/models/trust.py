"""Trust in users' modules: a specification names code, and may not decide that it runs.

A module is trusted if its file is below the current directory and is not installed there, or if
the user names it (`--trust-module`, or the variable that the option sets). Ranks run what their
driver, which has checked it, sends them.
"""

import importlib.util
import os
import pkgutil
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path

from search_spaces.errors import ModelError
from search_spaces.presets.catalogue import preset_names
from search_spaces.safety.files import is_folder
from search_spaces.specification.schema import PICKLE, ModelSpec

TRUST_VARIABLE = "PLIMSOLL_TRUST_MODULES"  # names, separated by commas
ALL_MODULES = "*"
_INSTALLED = ("site-packages", "dist-packages")


def runs_user_code(spec: ModelSpec) -> bool:
    """Returns True if describing or building the model runs code that Plimsoll does not ship."""
    return ":" in spec.name or spec.trust_remote_code


def is_hub_id(spec: ModelSpec) -> bool:
    """Returns True unless the model is a preset, a folder or a function, or a path of none."""
    name = spec.name
    if ":" in name or name in preset_names() or name.startswith((".", "/", "~")):
        return False
    return not is_folder(Path(name))


def trust_modules(names: Iterable[str]) -> None:
    """Trusts modules and all below them, in this process and in those that it starts."""
    trusted = dict.fromkeys((*_trusted_names(), *names))
    os.environ[TRUST_VARIABLE] = ",".join(trusted)


def check_trusted(module: str) -> None:
    """Checks that the user trusts a module and the packages that contain it, or a pickle's file.

    Modules that do not exist pass: their import says so.

    Raises:
        ModelError: If the user does not.
    """
    trusted = set(_trusted_names())
    is_pickle = module.endswith(PICKLE)
    parts = [module] if is_pickle else module.split(".")
    prefixes = [".".join(parts[: length + 1]) for length in range(len(parts))]
    if ALL_MODULES in trusted or not trusted.isdisjoint(prefixes):
        return
    pickled = [ModuleSpec(module, None, origin=str(Path(module).absolute()))]
    for spec in pickled if is_pickle else module_specs(module):
        is_package = spec.origin is None  # without a file of its own
        if not is_package and not _is_below_cwd(Path(str(spec.origin))):
            raise ModelError(
                f"{module} is not run: {spec.origin} is not a file of yours below the current"
                f" directory; read it, then trust it with --trust-module {parts[0]} (in Python:"
                f" {TRUST_VARIABLE}={parts[0]})"
            )


def module_specs(module: str) -> Iterator[ModuleSpec]:
    """Yields the specs of a module and of the packages that contain it, outermost first.

    Imports nothing. Ends early if the module does not exist.
    """
    path: list[str] | None = None
    names = module.split(".")
    for length in range(1, len(names) + 1):
        name = ".".join(names[:length])
        spec = _spec_of(name, path)
        if spec is None:
            return
        yield spec
        path = list(spec.submodule_search_locations or ())


def _spec_of(name: str, path: list[str] | None) -> ModuleSpec | None:
    try:
        if path is None or name in sys.modules:  # neither imports anything
            return importlib.util.find_spec(name)
    except ValueError:  # `__main__` has no spec
        return ModuleSpec(name, None, origin="the program that runs")
    return _spec_in(name, path)


def _spec_in(name: str, path: list[str]) -> ModuleSpec | None:
    """Finds a module of a package, which need not be imported as for `PathFinder`."""
    parts: list[str] = []  # folders of a package without a file of its own
    for location in path:
        finder = pkgutil.get_importer(location)
        spec = finder.find_spec(name) if finder is not None else None
        if spec is not None and spec.loader is not None:
            return spec
        parts += spec.submodule_search_locations or () if spec is not None else ()
    if not parts:
        return None
    package = ModuleSpec(name, None, is_package=True)
    package.submodule_search_locations = parts
    return package


def _trusted_names() -> Iterator[str]:
    names = os.environ.get(TRUST_VARIABLE, "").split(",")
    return (name.strip() for name in names if name.strip())


def _is_below_cwd(file: Path) -> bool:
    resolved, here = file.resolve(), Path.cwd().resolve()
    if not file.is_absolute() or not resolved.is_relative_to(here):
        return False
    if not set(_INSTALLED).isdisjoint(resolved.parts):
        return False
    return not any(resolved.is_relative_to(folder) for folder in _installed_folders())


@cache
def _installed_folders() -> tuple[Path, ...]:
    named = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    folders = (*named, *site.getsitepackages(), site.getusersitepackages())
    return tuple(Path(folder).resolve() for folder in folders)
