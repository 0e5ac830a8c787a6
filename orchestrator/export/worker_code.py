"""The worker's own code in exported scripts: the text of `workers/plain_torch`, where it is used.

A template calls the functions of the worker by their names. Their definitions, with all that these
use, and the imports that the script needs are added here, so that a script contains the code that
was measured and no second version of it.
"""

import ast
import functools
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files

_PACKAGE = "workers.plain_torch"
MARK = "# plimsoll: the worker's code\n"  # a line of a template
_TITLE = "measured"
_MODULES = (
    *("slices", "blocks", "experts", "head_loss", "selective", "data_parallel", "loss"),
    *("optimizers", "states", "update", "mesh"),
)
_WIDTH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A function, class or constant of the worker: its text, with the comment above a constant."""

    text: str
    uses: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A name that an import binds; `name` is None for `import module`."""

    module: str
    name: str | None
    bound: str


def complete_script(script: str) -> str:
    """Returns a script with the worker's definitions that it uses, and just the imports it needs.

    Args:
        script: Text of a template, with its own imports and the line `MARK`.
    """
    tree = ast.parse(script)
    definitions, imports = worker_definitions(), {**_worker_imports(), **_imports_of(tree)}
    names = _names_in(tree)
    chosen = _reached(
        names - {name for node in tree.body for name in _defined_by(node)}, definitions
    )
    used = names.union(*(definitions[name].uses for name in chosen))
    needed = [imported for imported in imports.values() if imported.bound in used]
    text = _joined([definitions[name].text for name in definitions if name in chosen])
    before, mark, after = _with_imports(script, tree, needed).partition(MARK)
    assert mark, "the template has no place for the worker's code"
    return before + _section(text) + after


@functools.cache
def worker_definitions() -> Mapping[str, Definition]:
    """Returns what the worker's plain files define, by name, each after what it is made with."""
    definitions: dict[str, Definition] = {}
    for module in _MODULES:
        text = _text_of(module)
        lines = text.splitlines()
        for node in ast.parse(text).body:
            for name in _defined_by(node):
                assert name not in definitions, f"{name} is defined twice in {_PACKAGE}"
                definitions[name] = Definition(
                    text=_source(node, lines), uses=frozenset(_names_in(node))
                )
    return definitions


def _text_of(module: str) -> str:
    return files(_PACKAGE).joinpath(f"{module}.py").read_text(encoding="utf-8")


@functools.cache
def _worker_imports() -> Mapping[str, Imported]:
    trees = [ast.parse(_text_of(module)) for module in _MODULES]
    return {
        bound: imported
        for tree in trees
        for bound, imported in _imports_of(tree).items()
        if not imported.module.startswith(_PACKAGE)
    }


def _defined_by(node: ast.stmt) -> tuple[str, ...]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return (node.name,)
    targets = node.targets if isinstance(node, ast.Assign) else ()
    return tuple(target.id for target in targets if isinstance(target, ast.Name))


def _source(node: ast.stmt, lines: list[str]) -> str:
    decorators = getattr(node, "decorator_list", ())
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)]) - 1
    while first and lines[first - 1].startswith("#"):
        first -= 1
    return "\n".join(lines[first : node.end_lineno])


def _names_in(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _reached(names: Iterable[str], definitions: Mapping[str, Definition]) -> set[str]:
    waiting, reached = [name for name in names if name in definitions], set[str]()
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += [used for used in definitions[name].uses if used in definitions]
    return reached


def _imports_of(tree: ast.Module) -> dict[str, Imported]:
    imports: dict[str, Imported] = {}
    for node in tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                key = alias.asname or alias.name  # two parts of a package are two imports
                imports[key] = Imported(module=alias.name, name=None, bound=bound)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module != "__future__":
            for alias in node.names:
                bound = alias.asname or alias.name
                imports[bound] = Imported(module=node.module, name=alias.name, bound=bound)
    return imports


def _joined(texts: Iterable[str]) -> str:
    joined, is_constant = "", True
    for text in texts:
        was_constant, is_constant = is_constant, not text.startswith(("def ", "class ", "@"))
        joined += ("\n" if was_constant and is_constant else "\n\n\n") + text
    return joined.strip("\n")


def _section(text: str) -> str:
    if not text:
        return ""
    line = f"# {'-' * (_WIDTH - 3 - len(_TITLE))} {_TITLE}"
    note = "# These functions are the code that ran when the plan was measured, word for word."
    return f"{line}\n{note}\n\n{text.lstrip()}\n\n\n"


def _with_imports(script: str, tree: ast.Module, imports: list[Imported]) -> str:
    lines = script.splitlines(keepends=True)
    own = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    first, last = own[0].lineno - 1, own[-1].end_lineno or 0
    text = "from __future__ import annotations\n" + "".join(_import_lines(imports))
    return "".join([*lines[:first], text, *lines[last:]])


def _import_lines(imports: list[Imported]) -> Iterator[str]:
    for standard in (True, False):
        group = [
            one
            for one in imports
            if (one.module.partition(".")[0] in sys.stdlib_module_names) is standard
        ]
        whole = [one for one in group if one.name is None]
        modules = sorted({one.module for one in group if one.name is not None}, key=str.lower)
        if group:
            yield "\n"
        for one in sorted(whole, key=lambda one: one.module):
            alias = "" if one.bound == one.module.partition(".")[0] else f" as {one.bound}"
            yield f"import {one.module}{alias}\n"
        for module in modules:
            names = sorted({one.name or "" for one in group if one.module == module and one.name})
            line = f"from {module} import {', '.join(names)}\n"
            if len(line) > _WIDTH:
                line = f"from {module} import (\n    " + ",\n    ".join(names) + ",\n)\n"
            yield line
