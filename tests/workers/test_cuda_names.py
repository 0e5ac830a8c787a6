"""Names of CUDA and NVML in the sources, against the lists of torch and pynvml."""

import re
from functools import cache
from pathlib import Path

import pynvml
import pytest
import torch
from torch._dynamo import trace_rules

ROOT = Path(__file__).parents[2]
FOLDERS = ("workers", "orchestrator", "search_spaces", "benchmarks")
CUDA = r"\btorch\.(?:_C\._(?:cuda|host)\w*|(?:cuda|accelerator)(?:\.\w+)+)"
NVML = r"(?<=[.\"])(?:nvml[A-Z]|NVML_)\w+"  # attributes, and texts that name them


@cache
def names(pattern: str) -> dict[str, str]:
    """Returns the names in our sources and templates, with a file of each."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")]
    return {
        name: str(path.relative_to(ROOT))
        for path in paths
        if path.suffix in (".py", ".jinja")
        for name in re.findall(pattern, path.read_text(encoding="utf-8"))
    }


def known_to_torch(name: str) -> bool:
    """Returns True if this torch has the name, its compiler lists it, or its type stubs do."""
    listed = (
        trace_rules.torch_c_binding_in_graph_functions,
        trace_rules.torch_non_c_binding_in_graph_functions,
    )
    stubs = Path(torch.__file__).with_name("_C") / "__init__.pyi"
    if any(name in each for each in listed) or f"def {name[9:]}(" in stubs.read_text("utf-8"):
        return True
    value: object = torch
    for part in name.split(".")[1:]:
        value = getattr(value, part, None)
    return value is not None


def test_the_sources_use_such_names() -> None:
    assert len(names(CUDA)) > 15
    assert {"nvmlDeviceGetHandleByUUID", "nvmlClocksEventReasonSwPowerCap"} <= set(names(NVML))


@pytest.mark.parametrize("name", sorted(names(CUDA)))
def test_torch_has_each_name(name: str) -> None:
    assert known_to_torch(name), f"{names(CUDA)[name]} uses {name}, which no torch has"


def test_a_name_that_no_torch_has_is_found() -> None:
    assert not known_to_torch("torch._C._cuda_attachOutOfMemoryObserver")  # MTIA's spelling
    assert not known_to_torch("torch.cuda.empty_host_cash")


@pytest.mark.parametrize("name", sorted(names(NVML)))
def test_pynvml_has_each_name(name: str) -> None:
    assert hasattr(pynvml, name), f"{names(NVML)[name]} uses {name}"


# memory and time of a device are asked in one place, which a model of a device can take
RUNTIME = "workers/memory/device_runtime.py"
ELSEWHERE = {"workers/run_recorder/step_recorder.py": "runs in processes of users"}
MEMORY_OR_TIME = re.compile(
    r"memory_(stats|reserved|allocated)|mem_get_info|memory_info|memory_fraction|synchronize"
    r"|empty_(host_)?cache|_host_emptyCache|Event|Stream"
)


def test_memory_and_time_of_a_device_are_asked_in_one_place() -> None:
    found = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "workers").rglob("*.py")
        if any(map(MEMORY_OR_TIME.search, re.findall(CUDA, path.read_text(encoding="utf-8"))))
    }

    assert found == {RUNTIME, *ELSEWHERE}
