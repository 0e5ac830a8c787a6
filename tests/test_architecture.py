"""Rules of the architecture that import-linter, which looks at whole packages, cannot check."""

import ast
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("search_spaces", "workers", "orchestrator", "plimsoll")
SOURCES = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
MAX_LINES, MIN_LINES = 500, 40
MAX_FUNCTION_LINES = 60
# packages and modules at the top of each package, at most
ROOMS = {"orchestrator": (10, 6), "workers": (10, 9), "search_spaces": (8, 6)}
# files below the lower bound, and why they stand alone
SHORT = {
    "orchestrator/cli/schema.py": "one command a file",
    "orchestrator/export/deepspeed.py": "one format a file",
    "orchestrator/export/torchrun.py": "one format a file",
    "orchestrator/export/trainjob.py": "one format a file",
    "plimsoll/__main__.py": "what `python -m plimsoll` runs",
    "search_spaces/knobs/registry.py": "the knobs of five files, in one order",
    "search_spaces/knobs/process.py": "the knobs of one subject a file",
    "search_spaces/rules/base.py": "what rules and their registry both import",
    "workers/plain_torch/experts.py": "a split that some exported scripts contain",
    "workers/plain_torch/states.py": "a cast that some exported scripts contain",
    "workers/run_recorder/site/sitecustomize.py": "a name that Python looks for",
}
# the packages or modules that may import a library, itself or a part of it
ONLY_IN = {
    "ray": ("orchestrator.cluster",),
    "optuna": ("orchestrator.search", "orchestrator.study"),
    "sqlalchemy": ("orchestrator.study",),
    "psycopg": ("orchestrator.study",),
    "mlflow": ("orchestrator.tracking",),
    "typer": ("orchestrator.cli",),
    "pynvml": ("workers.memory",),
    "torch": ("workers",),
    "transformers": ("workers",),
    "tokenizers": ("workers",),
    "deepspeed": ("workers",),
}
BOUNDARIES = {
    "workers/entry.py",
    "workers/models/isolation.py",
    "workers/models/user_code.py",
    "orchestrator/cli/app.py",
    "orchestrator/cluster/runtime.py",  # to Ray, as it starts
    "orchestrator/export/trainer_parser.py",  # to another trainer
}
CORE_MAY_IMPORT = ("orchestrator.core", "search_spaces")


def relative(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def imports_of(tree: ast.AST) -> Iterator[str]:
    """Full names of what a module imports: `from ray import tune` names `ray.tune`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imports_at_top(tree: ast.AST) -> Iterator[str]:
    """Those that run when the module is imported."""
    assert isinstance(tree, ast.Module)
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from imports_of(ast.Module(body=[node], type_ignores=[]))


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.AST]:
    """Each module, parsed, by its path."""
    return {relative(file): ast.parse(file.read_text(encoding="utf-8")) for file in SOURCES}


def test_frameworks_are_named_only_where_they_are_known(trees: dict[str, ast.AST]) -> None:
    strays = [
        (path, name)
        for path, tree in trees.items()
        for name in imports_of(tree)
        for library, places in ONLY_IN.items()
        if is_within(name, library)
        and not any(is_within(module_of(path), place) for place in places)
    ]

    assert not strays


@pytest.mark.parametrize(
    ("pattern", "file"),
    [
        (r"ray\.(.*\.)?(_\w+|generated|class_cache)(\.|$)", "orchestrator/cluster/ray_private.py"),
    ],
)
def test_private_parts_are_named_in_one_file(
    pattern: str, file: str, trees: dict[str, ast.AST]
) -> None:
    found = {
        path for path, tree in trees.items() for name in imports_of(tree) if re.match(pattern, name)
    }

    assert found == {file}


def test_the_core_knows_only_values(trees: dict[str, ast.AST]) -> None:
    ours = {
        name
        for path, tree in trees.items()
        for name in imports_of(tree)
        if path.startswith("orchestrator/core/") and name.split(".")[0] in PACKAGES
    }

    assert ours
    assert not {one for one in ours if not any(is_within(one, may) for may in CORE_MAY_IMPORT)}


def test_only_the_boundaries_to_users_code_catch_everything(trees: dict[str, ast.AST]) -> None:
    broad = {
        path
        for path, tree in trees.items()
        for handler in ast.walk(tree)
        if isinstance(handler, ast.ExceptHandler) and is_broad(handler)
    }

    assert broad <= BOUNDARIES


def is_broad(handler: ast.ExceptHandler) -> bool:
    """Returns whether it takes every exception and does not pass it on."""
    caught, last = handler.type, handler.body[-1]
    if isinstance(last, ast.Raise) and last.exc is None:
        return False
    kinds = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(
        kind is None or (isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException"))
        for kind in kinds
    )


def test_no_modules_import_each_other_in_a_cycle() -> None:
    """Imports inside functions count too."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 30

    graphlib.TopologicalSorter(imports).prepare()  # a CycleError names the modules


def test_files_hold_one_concept() -> None:
    """None is too long to be read, and what is short has a reason."""
    lines = {relative(file): len(file.read_text(encoding="utf-8").splitlines()) for file in SOURCES}
    short = {
        path
        for path, count in lines.items()
        if count < MIN_LINES and not path.endswith("__init__.py")
    }

    assert {path: count for path, count in lines.items() if count > MAX_LINES} == {}
    assert short == SHORT.keys()


def test_functions_stay_short(trees: dict[str, ast.AST]) -> None:
    lines = {
        f"{path}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }

    assert {name: count for name, count in lines.items() if count > MAX_FUNCTION_LINES} == {}


@pytest.mark.parametrize("package", ROOMS)
def test_a_package_can_be_drawn_from_memory(package: str) -> None:
    most_packages, most_modules = ROOMS[package]
    packages = [file.parent for file in (ROOT / package).glob("*/__init__.py")]
    modules = [file for file in (ROOT / package).glob("*.py") if file.name != "__init__.py"]

    assert len(packages) <= most_packages
    assert len(modules) <= most_modules


def test_packages_export_nothing_from_elsewhere(trees: dict[str, ast.AST]) -> None:
    """A name is imported from the module that defines it; `plimsoll` is what users import."""
    ours = {
        path
        for path, tree in trees.items()
        if path.endswith("__init__.py")
        and any(name.split(".")[0] in PACKAGES for name in imports_at_top(tree))
    }

    # the first says that Optuna is missing before it is imported
    assert ours <= {"orchestrator/study/__init__.py", "plimsoll/__init__.py"}


@pytest.mark.parametrize(
    ("source", "broad"),
    [
        ("except: pass", True),
        ("except (OSError, BaseException): raise OSError from None", True),
        ("except BaseException:\n    g()\n    raise", False),
        ("except OSError: pass", False),
    ],
)
def test_broad_handlers_are_found_in_every_form(source: str, broad: bool) -> None:
    tree = ast.parse(f"try:\n    f()\n{source}")
    handler = next(node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler))

    assert is_broad(handler) is broad
