"""Inputs of training (data, tokenizer, model folder, user modules), collected for an export.

An exported folder must start from any current directory and on other machines. So an input of up
to `MAX_COPIED_BYTES` is copied into its subfolder `inputs/`. A larger one is referenced by absolute
path, and also searched elsewhere (`search_spaces.settings.export_manifest.Input`).
"""

import ast
import importlib.util
import os
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from search_spaces.presets.catalogue import preset_names
from search_spaces.safety.files import with_home
from search_spaces.settings.export_manifest import CODE, INPUTS, Input, with_paths
from search_spaces.specification.schema import DataSpec, SweepSpec
from workers.models.user_code import importable_from_cwd

MAX_COPIED_BYTES = 32 * 2**20  # per input; all data files together count as one
# files of a model or tokenizer folder to copy; weights are initialized, not loaded
_COPIED_SUFFIXES = (".json", ".py", ".txt", ".model", ".tiktoken", ".jinja")
_PLIMSOLL = ("orchestrator", "search_spaces", "workers")  # installed, never copied


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Inputs of an export, the files to copy, and the specification with the new paths.

    `files` maps a path in the exported folder to the file to copy there.
    """

    inputs: tuple[Input, ...]
    files: Mapping[str, Path]
    spec: SweepSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class _LocalInput:
    """An input on this machine."""

    name: str
    source: Path
    files: Mapping[str, Path]  # files to copy, by path below `inputs/`
    spec_path: str  # its path in the specification


def collect_inputs(spec: SweepSpec, *, carry: bool = True) -> Inputs:
    """Collects the inputs of a specification; relative paths start at the current directory.

    Args:
        spec: The specification that was measured.
        carry: True to copy small inputs, False to reference all by absolute path.
    """
    inputs: list[Input] = []
    files: dict[str, Path] = {}
    paths: dict[str, str] = {}
    for group in (_data(spec.data), _tokenizer(spec.data), _model(spec), _code(spec)):
        local_inputs = list(group)
        copied = {name: file for local in local_inputs for name, file in local.files.items()}
        carried = carry and bool(copied) and _bytes(copied) <= MAX_COPIED_BYTES
        for local in local_inputs:
            exported = Input(name=local.name, source=str(local.source), carried=carried)
            inputs.append(exported)
            paths[local.spec_path] = exported.path
        if carried:
            files |= {f"{INPUTS}/{name}": file for name, file in copied.items()}
    return Inputs(inputs=tuple(inputs), files=files, spec=with_paths(spec, paths))


def _bytes(files: Mapping[str, Path]) -> float:
    try:
        return sum(file.stat().st_size for file in files.values())
    except OSError:  # a file is missing
        return float("inf")


def _absolute(path: str) -> Path:
    # do not resolve symbolic links: in the Hub's cache only the links have file names and suffixes
    return Path(os.path.abspath(with_home(str(path))))  # noqa: PTH100


def _data(data: DataSpec) -> Iterator[_LocalInput]:
    sources = {file: _absolute(file) for file in data.files}
    if not sources:
        return
    common = os.path.commonpath([source.parent for source in sources.values()])
    for spec_path, source in sources.items():
        name = f"data/{source.relative_to(common).as_posix()}"
        visible = (path for path in source.rglob("*") if "/." not in f"/{path.relative_to(source)}")
        files = filter(Path.is_file, (source, *visible))
        named = {f"data/{file.relative_to(common).as_posix()}": file for file in files}
        yield _LocalInput(name=name, source=source, files=named, spec_path=spec_path)


def _tokenizer(data: DataSpec) -> Iterator[_LocalInput]:
    if data.tokenizer is None:
        return
    source = _absolute(data.tokenizer)
    if source.is_dir():
        yield _folder("tokenizer", source, data.tokenizer)
    elif source.is_file():  # otherwise a Hub id, read from the Hub's cache
        name = f"tokenizer/{source.name}"
        yield _LocalInput(name=name, source=source, files={name: source}, spec_path=data.tokenizer)


def _model(spec: SweepSpec) -> Iterator[_LocalInput]:
    name = spec.model.name
    if name not in preset_names() and (source := _absolute(name)).is_dir():
        yield _folder("model", source, name)
    if place := spec.model.pickle:
        source = _absolute(place)
        named = f"model/{source.name}"
        yield _LocalInput(name=named, source=source, files={named: source}, spec_path=place)


def _folder(name: str, source: Path, spec_path: str) -> _LocalInput:
    files = {
        f"{name}/{file.name}": file
        for file in sorted(source.iterdir())
        if file.is_file() and file.suffix in _COPIED_SUFFIXES
    }
    return _LocalInput(name=name, source=source, files=files, spec_path=spec_path)


def _code(spec: SweepSpec) -> Iterator[_LocalInput]:
    """Yields the module of `module:function`, with the local modules that it imports."""
    module, colon, _ = spec.model.name.partition(":")
    top = module.partition(".")[0]
    if not colon or top in _PLIMSOLL:
        return
    with importable_from_cwd():
        root = _root(top)
        if root is None or _is_installed(root):
            return
        files = {f"{CODE}/{file.relative_to(root)}": file for file in _local_files(top, root)}
    yield _LocalInput(name=CODE, source=root, files=files, spec_path="")


def _root(top: str) -> Path | None:
    """The folder from which a module is imported; None if that is unknown."""
    try:
        module = importlib.util.find_spec(top)
    except ValueError:  # a module without a spec, such as `__main__`
        return None
    if module is None:
        return None
    if module.submodule_search_locations:  # a package
        return _absolute(next(iter(module.submodule_search_locations))).parent
    return _absolute(module.origin).parent if module.has_location and module.origin else None


def _is_installed(root: Path) -> bool:
    installed = (_absolute(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))
    return any(root.is_relative_to(folder) for folder in installed)


def _local_files(top: str, root: Path) -> Iterator[Path]:
    """Yields the files of a module, and of all modules in its folder that these import."""
    pending, visited = [top], {top}
    while pending:
        for file in _module_files(root, pending.pop()):
            yield file
            if file.suffix != ".py":
                continue
            new = {name for name in _imported(file) - visited if name not in _PLIMSOLL}
            local = {name for name in new if _root(name) == root}
            visited |= new
            pending += sorted(local)


def _module_files(root: Path, module: str) -> Iterator[Path]:
    if (root / module).is_dir():
        for file in sorted((root / module).rglob("*")):
            parts = file.relative_to(root).parts
            hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
            if file.is_file() and not hidden:
                yield file
    elif (root / f"{module}.py").is_file():
        yield root / f"{module}.py"


def _imported(file: Path) -> set[str]:
    """Top-level names of absolute imports; relative ones stay within the package."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # not importable, so never imported
        return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names
