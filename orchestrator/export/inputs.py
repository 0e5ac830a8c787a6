"""Collects what training reads (data, tokenizer, model folder, user modules), to carry it along.

A folder that is exported has to start from any current directory and on other machines. So each
input of up to `CARRIED_BYTES` is copied into its subfolder `inputs/`; a larger one is referenced
by its absolute path, and searched elsewhere too (`search_spaces.settings.export_manifest.Input`).
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from search_spaces.presets import preset_names
from search_spaces.settings.export_manifest import CODE, INPUTS, Input, with_paths
from search_spaces.spec.schema import DataSpec, SweepSpec
from workers.models.user_code import importable_from_here

CARRIED_BYTES = 32 * 2**20  # of one input; all data files together are one
# of a model's or a tokenizer's folder; weights are not needed, since they are initialised
_DESCRIBING = (".json", ".py", ".txt", ".model", ".tiktoken", ".jinja")
_OURS = ("orchestrator", "search_spaces", "workers")  # Plimsoll's own packages, which are installed


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Inputs of an export, the files to copy, and the specification with the new paths.

    `files` maps a path in the exported folder to the file that is copied there.
    """

    inputs: tuple[Input, ...]
    files: Mapping[str, Path]
    spec: SweepSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """One input: its name, where it is, what of it is copied, and its path in the specification."""

    name: str
    source: Path
    files: Mapping[str, Path]  # by path below `inputs/`
    written: str  # in the specification


def collect_inputs(spec: SweepSpec, *, carry: bool = True) -> Inputs:
    """Collects the inputs of a specification, whose relative paths start at the current directory.

    Args:
        spec: The specification that was measured.
        carry: Copy small inputs; else all are referenced by absolute path.
    """
    inputs: list[Input] = []
    files: dict[str, Path] = {}
    paths: dict[str, str] = {}
    for group in (_data(spec.data), _tokenizer(spec.data), _model(spec), _code(spec)):
        found = list(group)
        copied = {name: file for each in found for name, file in each.files.items()}
        carried = carry and bool(copied) and _bytes(copied) <= CARRIED_BYTES
        for each in found:
            known = Input(name=each.name, source=str(each.source), carried=carried)
            inputs.append(known)
            paths[each.written] = known.path
        if carried:
            files |= {f"{INPUTS}/{name}": file for name, file in copied.items()}
    return Inputs(inputs=tuple(inputs), files=files, spec=with_paths(spec, paths))


def _bytes(files: Mapping[str, Path]) -> float:
    """Sum of the sizes; infinite if a file is gone."""
    try:
        return sum(file.stat().st_size for file in files.values())
    except OSError:
        return float("inf")


def _absolute(path: str) -> Path:
    # symbolic links stay: a cache of the Hub has names, and their endings, in links alone
    return Path(os.path.abspath(Path(path).expanduser()))  # noqa: PTH100


def _data(data: DataSpec) -> Iterator[_Found]:
    sources = {file: _absolute(file) for file in data.files}
    if not sources:
        return
    common = os.path.commonpath([source.parent for source in sources.values()])
    for written, source in sources.items():
        name = f"data/{source.relative_to(common).as_posix()}"
        yield _Found(name=name, source=source, files={name: source}, written=written)


def _tokenizer(data: DataSpec) -> Iterator[_Found]:
    if data.tokenizer is None:
        return
    source = _absolute(data.tokenizer)
    if source.is_dir():
        yield _folder("tokenizer", source, data.tokenizer)
    elif source.is_file():  # else a Hub id, which is read from its cache
        name = f"tokenizer/{source.name}"
        yield _Found(name=name, source=source, files={name: source}, written=data.tokenizer)


def _model(spec: SweepSpec) -> Iterator[_Found]:
    name = spec.model.name
    if name not in preset_names() and (source := _absolute(name)).is_dir():
        yield _folder("model", source, name)


def _folder(name: str, source: Path, written: str) -> _Found:
    files = {f"{name}/{file.name}": file for file in sorted(source.iterdir()) if _describes(file)}
    return _Found(name=name, source=source, files=files, written=written)


def _describes(file: Path) -> bool:
    return file.is_file() and file.suffix in _DESCRIBING


def _code(spec: SweepSpec) -> Iterator[_Found]:
    """Yields the module of `module:function` with the local modules that it imports."""
    module, colon, _ = spec.model.name.partition(":")
    top = module.partition(".")[0]
    if not colon or top in _OURS:
        return
    with importable_from_here():
        root = _root(top)
        if root is None or _is_installed(root):
            return
        files = {f"{CODE}/{file.relative_to(root)}": file for file in _local_files(top, root)}
    yield _Found(name=CODE, source=root, files=files, written="")


def _root(top: str) -> Path | None:
    """Folder from which a module is imported; None if it cannot be told."""
    try:
        found = importlib.util.find_spec(top)
    except ValueError:  # a module without a specification, as `__main__`
        return None
    if found is None:
        return None
    if found.submodule_search_locations:  # a package
        return _absolute(next(iter(found.submodule_search_locations))).parent
    return _absolute(found.origin).parent if found.has_location and found.origin else None


def _is_installed(root: Path) -> bool:
    installed = (_absolute(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))
    return any(root.is_relative_to(folder) for folder in installed)


def _local_files(top: str, root: Path) -> Iterator[Path]:
    """Yields the files of a module, and of modules beside it that are imported, by whichever."""
    waiting, known = [top], {top}
    while waiting:
        for file in _files_of(root, waiting.pop()):
            yield file
            if file.suffix != ".py":
                continue
            fresh = {name for name in _imported(file) - known if name not in _OURS}
            local = {name for name in fresh if _root(name) == root}
            known |= fresh
            waiting += sorted(local)


def _files_of(root: Path, module: str) -> Iterator[Path]:
    if (root / module).is_dir():
        for file in sorted((root / module).rglob("*")):
            parts = file.relative_to(root).parts
            hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
            if file.is_file() and not hidden:
                yield file
    elif (root / f"{module}.py").is_file():
        yield root / f"{module}.py"


def _imported(file: Path) -> set[str]:
    """Top-level names of absolute imports; relative ones stay within a package."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # a file that is never imported
        return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names
