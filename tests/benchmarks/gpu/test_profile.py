"""The trace of a plan: kinds of kernels, and a clock without the profiler's start."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity

from benchmarks.gpu import profile
from benchmarks.gpu.profile import COMPILED, OTHER, by_kind, kind_of, recorded


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("void at::native::cunn_SoftMaxForward<8, float>", "norms and loss"),
        ("aten::_log_softmax", "norms and loss"),
        ("void flash_fwd_kernel<Flash_fwd_kernel_traits<128>>", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_knob_7", "attention"),
        ("triton_poi_fused__to_copy_add_silu_3", COMPILED),
        ("triton_red_fused__log_softmax_nll_loss_7", COMPILED),
        ("triton_tem_fused_mm_12", "matmul"),
        ("nvjet_hsh_256x128_64x4", "matmul"),
        ("Memcpy HtoD (Pinned -> Device)", "copies"),
        ("void multi_tensor_apply_kernel<FusedAdamMathFunctor>", "optimizer"),
        ("void vectorized_elementwise_kernel<4, MulFunctor>", OTHER),
    ],
)
def test_a_kernel_is_of_the_kind_that_its_name_says(kernel: str, kind: str) -> None:
    assert kind_of(kernel) == kind


def test_what_no_kernel_takes_is_idle() -> None:
    assert by_kind([("aten::mm", 0.5), ("aten::bmm", 0.25)], 1.0) == {"matmul": 0.75, "idle": 0.25}


def test_the_profilers_start_is_no_idle_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first start loads CUPTI, for seconds; each start takes a while."""
    now = 0.0

    class SlowToStart(torch.profiler.profile):
        def __enter__(self) -> SlowToStart:
            nonlocal now
            now += 100.0
            super().__enter__()
            return self

    def step() -> None:
        nonlocal now
        now += 1.0
        torch.ones(8, 8) @ torch.ones(8, 8)

    monkeypatch.setattr(profile, "profile", SlowToStart)
    monkeypatch.setattr("time.perf_counter", lambda: now)

    named, wall_seconds = recorded(step, ProfilerActivity.CPU)

    assert wall_seconds == 1.0
    assert "aten::mm" in dict(named)


def test_spans_over_kernels_are_not_counted_again() -> None:
    def step() -> None:
        with torch.profiler.record_function("Optimizer.step#AdamW.step"):
            torch.ones(8, 8) @ torch.ones(8, 8)

    named, _ = recorded(step, ProfilerActivity.CPU)

    assert "aten::mm" in dict(named)
    assert "Optimizer.step#AdamW.step" not in dict(named)
