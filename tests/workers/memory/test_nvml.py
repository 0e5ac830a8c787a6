"""NVML on this machine; with a GPU, compared with torch."""

from __future__ import annotations

import pytest
import torch

from workers.memory.nvml import nvml, nvml_device


def test_a_cpu_is_no_device_of_nvml() -> None:
    with nvml_device(torch.device("cpu")) as gpu:
        assert gpu is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_there_is_nothing_to_ask() -> None:
    with nvml_device(torch.device("cuda", 0)) as gpu:
        assert gpu is None
    with nvml() as library:
        assert library is None or library.nvmlDeviceGetCount() == 0


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_nvml_knows_the_gpu_that_torch_means() -> None:
    device = torch.device("cuda", 0)

    with nvml_device(device) as gpu:
        assert gpu is not None
        total = gpu.library.nvmlDeviceGetMemoryInfo(gpu.handle).total
        assert total >= torch.cuda.get_device_properties(device).total_memory
