"""What keeps the architecture, where import-linter looks at whole packages only."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("search_spaces", "workers", "orchestrator", "plimsoll")
SOURCES = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
MAX_LINES = 500

# who may name it, itself or something below it; a path ends with / if it is a package
ONLY_IN = {
    "ray": ("orchestrator/cluster/",),
    "optuna": ("orchestrator/search/", "orchestrator/study/"),
    "sqlalchemy": ("orchestrator/study",),
    "psycopg": ("orchestrator/study/postgres",),
    "mlflow": ("orchestrator/tracking/",),
    "pynvml": ("workers/memory/nvml",),
    "torch": ("workers/",),
    "transformers": ("workers/",),
    "tokenizers": ("workers/",),
    "deepspeed": ("workers/",),
    "typer": ("orchestrator/cli/",),
}
DOORS = {"workers/entry.py", "workers/models/user_code.py", "orchestrator/cli/app.py"}
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
        for framework, places in ONLY_IN.items()
        if is_within(name, framework) and not path.startswith(places)
    ]

    assert not strays


def test_the_core_knows_only_values(trees: dict[str, ast.AST]) -> None:
    ours = [
        (path, name)
        for path, tree in trees.items()
        for name in imports_of(tree)
        if path.startswith("orchestrator/core/") and name.split(".")[0] in PACKAGES
    ]

    assert ours
    assert [
        (path, name)
        for path, name in ours
        if not any(is_within(name, may) for may in CORE_MAY_IMPORT)
    ] == []


def test_only_the_doors_to_users_code_catch_everything(trees: dict[str, ast.AST]) -> None:
    broad = {
        path
        for path, tree in trees.items()
        for handler in ast.walk(tree)
        if isinstance(handler, ast.ExceptHandler) and is_broad(handler)
    }

    assert broad <= DOORS


def is_broad(handler: ast.ExceptHandler) -> bool:
    """Whether it takes every exception and does not pass it on."""
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


def test_modules_stay_short() -> None:
    lines = {relative(file): len(file.read_text(encoding="utf-8").splitlines()) for file in SOURCES}

    assert {path: count for path, count in lines.items() if count > MAX_LINES} == {}


def test_there_is_something_to_look_at() -> None:
    assert len(SOURCES) > 30


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import ray.tune as t", ["ray.tune"]),
        ("from ray import train, tune", ["ray.train", "ray.tune"]),
        ("def f():\n    from ray.tune.search import Searcher", ["ray.tune.search.Searcher"]),
    ],
)
def test_imports_are_found_in_every_form(source: str, names: list[str]) -> None:
    assert list(imports_of(ast.parse(source))) == names


@pytest.mark.parametrize(
    ("source", "broad"),
    [
        ("except: pass", True),
        ("except Exception as error: g()", True),
        ("except (OSError, BaseException): raise OSError from None", True),
        ("except BaseException:\n    g()\n    raise", False),
        ("except OSError: pass", False),
    ],
)
def test_broad_handlers_are_found_in_every_form(source: str, broad: bool) -> None:
    tree = ast.parse(f"try:\n    f()\n{source}")
    handler = next(node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler))

    assert is_broad(handler) is broad
