"""Names of CUDA and NVML in the sources, against the lists of torch and pynvml."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pynvml
import pytest
import torch
from torch._dynamo import trace_rules

ROOT = Path(__file__).parents[2]
FOLDERS = ("workers", "orchestrator", "search_spaces", "benchmarks")
_DOTTED = re.compile(r"\btorch(?:\._C)?(?:\.\w+)+")
_CUDA = re.compile(r"^torch\.(_C\._cuda|_C\._host|cuda\.|accelerator\.)")
_NVML = re.compile(r"\b(?:nvml|NVML)\w+")
_OURS = {"nvml_device", "NvmlDevice", "nvml_stub"}


@cache
def cuda_names() -> dict[str, str]:
    """Returns dotted names of torch.cuda and its like in our sources, with a file of each."""
    names: dict[str, str] = {}
    for path, text in _texts():
        found = _DOTTED.findall(text) if path.suffix == ".jinja" else _attributes(text)
        names |= {name: str(path.relative_to(ROOT)) for name in found if _CUDA.match(name)}
    return names


@cache
def nvml_names() -> dict[str, str]:
    """Returns names of NVML, as attributes or as texts that are names of attributes."""
    names: dict[str, str] = {}
    for path, text in _texts():
        if path.suffix == ".py" and ("pynvml" in text or "memory.nvml" in text):
            for node in ast.walk(ast.parse(text)):
                name = _nvml_name(node)
                if name is not None and name not in _OURS:
                    names[name] = str(path.relative_to(ROOT))
    return names


def _nvml_name(node: ast.AST) -> str | None:
    name = node.attr if isinstance(node, ast.Attribute) else None
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        name = node.value
    return name if name and _NVML.fullmatch(name) else None


def _texts() -> Iterator[tuple[Path, str]]:
    for folder in FOLDERS:
        for pattern in ("*.py", "*.jinja"):
            for path in sorted((ROOT / folder).rglob(pattern)):
                yield path, path.read_text(encoding="utf-8")


def _attributes(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and (name := _dotted(node)).startswith("torch."):
            yield name


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def known_to_torch(name: str) -> bool:
    """Returns True if this torch has the name, its compiler lists it, or its type stubs do."""
    listed = (
        trace_rules.torch_c_binding_in_graph_functions,
        trace_rules.torch_non_c_binding_in_graph_functions,
    )
    if any(name in names for names in listed) or name in _stub_names():
        return True
    value: object = torch
    for part in name.split(".")[1:]:
        if not hasattr(value, part):
            return False
        value = getattr(value, part)
    return True


@cache
def _stub_names() -> frozenset[str]:
    stubs = Path(torch.__file__).with_name("_C") / "__init__.pyi"
    functions = re.findall(r"^def (\w+)\(", stubs.read_text(encoding="utf-8"), re.MULTILINE)
    return frozenset(f"torch._C.{name}" for name in functions)


def test_the_sources_use_such_names() -> None:
    assert len(cuda_names()) > 20
    assert "torch._C._cuda_attach_out_of_memory_observer" in cuda_names()
    assert {"nvmlDeviceGetHandleByUUID", "nvmlClocksEventReasonSwPowerCap"} <= set(nvml_names())


@pytest.mark.parametrize("name", sorted(cuda_names()))
def test_torch_has_each_name(name: str) -> None:
    assert known_to_torch(name), f"{cuda_names()[name]} uses {name}, which no torch has"


def test_a_name_that_no_torch_has_is_found() -> None:
    assert not known_to_torch("torch._C._cuda_attachOutOfMemoryObserver")  # MTIA's spelling
    assert not known_to_torch("torch.cuda.empty_host_cash")


# memory and time of a device are asked in one place, which a model of a device can take
RUNTIME = "workers/memory/device_runtime.py"
ELSEWHERE = {"workers/run_recorder/step_recorder.py": "runs in processes of users"}
_MEMORY_OR_TIME = re.compile(
    r"memory_(stats|reserved|allocated)|mem_get_info|memory_info|memory_fraction|synchronize"
    r"|empty_(host_)?cache|_host_emptyCache|Event|Stream"
)


def test_memory_and_time_of_a_device_are_asked_in_one_place() -> None:
    found = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "workers").rglob("*.py")
        for name in _attributes(path.read_text(encoding="utf-8"))
        if _CUDA.match(name) and _MEMORY_OR_TIME.search(name)
    }

    assert found == {RUNTIME, *ELSEWHERE}


@pytest.mark.parametrize("name", sorted(nvml_names()))
def test_pynvml_has_each_name(name: str) -> None:
    assert hasattr(pynvml, name), f"{nvml_names()[name]} uses {name}"
