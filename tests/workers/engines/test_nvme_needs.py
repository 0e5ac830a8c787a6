"""Needs of NVMe offload: for a GPU, DeepSpeed builds async_io with CUDA's compiler."""

from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

from workers.parallel import deepspeed_features
from workers.parallel.deepspeed_features import missing_for_nvme

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)

needs_the_rest = pytest.mark.skipif(
    missing_for_nvme(CPU) is not None, reason=str(missing_for_nvme(CPU))
)


@pytest.fixture(autouse=True)
def cuda_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.version, "hip", None)


def toolkit(folder: Path, says: str) -> str:
    compiler = folder / "bin" / "nvcc"
    compiler.parent.mkdir()
    compiler.write_text(f"#!/bin/sh\necho '{says}'\n")
    compiler.chmod(0o755)
    return str(folder)


@needs_the_rest
def test_an_image_without_a_toolkit_lacks_it_on_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's wheel brings the libraries of CUDA, but no compiler."""
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)

    assert "nvcc of CUDA 13.0, which is missing" in (missing_for_nvme(CUDA) or "")
    assert missing_for_nvme(CPU) is None


@needs_the_rest
@pytest.mark.parametrize(
    ("says", "problem"),
    [
        ("release 13.2, V13.2.1", None),
        (
            "Cuda compilation tools, release 12.8, V12.8.93",
            "nvcc 12.8, but torch is built for CUDA",
        ),
        ("no such thing", "which does not run"),
    ],
)
def test_the_toolkit_is_that_of_torch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str, problem: str | None
) -> None:
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", toolkit(tmp_path, says))

    lack = missing_for_nvme(CUDA)

    assert lack is None if problem is None else problem in (lack or "")


@needs_the_rest
def test_amd_has_a_compiler_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)

    assert deepspeed_features.missing_for_nvme(CUDA) is None
