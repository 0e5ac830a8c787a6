"""Emulation of CUDA on CPU tensors, compared with torch's own lists and documentation."""

import re
from pathlib import Path

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from workers.tracing.step import IN_FP32, TO_FP32, TO_HALF, CudaEmulation, autocast_as_on

HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
# names of torch's operators that Python calls otherwise
CALLED = {"frobenius_norm": "norm", "nuclear_norm": "nuclear_norm"}


def listed(macro: str) -> set[str]:
    """The operators in one of the lists of torch's header."""
    text = HEADER.read_text("utf-8").replace("\\\n", "")
    (line,) = re.findall(rf"#define {macro}\(_\)(.*)", text)
    return set(re.findall(r"_\((\w+)", line))


def test_the_lists_are_those_of_torchs_autocast() -> None:
    images = {name for name in listed("AT_FORALL_FP32") if "upsample" in name}
    fp32 = {CALLED.get(name, name) for name in listed("AT_FORALL_FP32") - images}

    assert fp32 <= IN_FP32
    assert "interpolate" in IN_FP32 or not images
    assert {name.replace("multi_dot", "linalg_multi_dot") for name in TO_HALF} <= listed(
        "AT_FORALL_LOWER_PRECISION_FP"
    )
    assert {name.removeprefix("linalg_") for name in listed("AT_FORALL_FP32_SET_OPT_DTYPE")} <= {
        name.removeprefix("linalg_") for name in TO_FP32
    }


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda x: functional.layer_norm(x, (8,)), torch.float32),
        (lambda x: functional.softmax(x, -1), torch.float32),
        (lambda x: x.softmax(-1), torch.float32),
        (lambda x: functional.softmax(x, -1, dtype=torch.bfloat16), torch.bfloat16),
        (lambda x: x.pow(2), torch.float32),
        (lambda x: x**2, torch.float32),
        (torch.square, torch.float32),
        (lambda x: torch.einsum("ij,jk->ik", x.float(), x.float()), torch.bfloat16),
        (torch.rsqrt, torch.float32),
        (lambda x: x.sum(), torch.float32),
        (lambda x: functional.cross_entropy(x, torch.zeros(8, dtype=torch.long)), torch.float32),
        (functional.gelu, torch.bfloat16),
        (lambda x: functional.linear(x, torch.ones(8, 8)), torch.bfloat16),
    ],
)
def test_types_are_those_of_cuda(call: object, expected: torch.dtype) -> None:
    """torch's documentation: "CUDA Ops that can autocast to float32"."""
    given = torch.ones(8, 8, dtype=torch.bfloat16)

    with CudaEmulation(), torch.autocast("cpu", torch.bfloat16):
        assert call(given).dtype == expected  # type: ignore[operator]
    with CudaEmulation(), torch.autocast("cpu", enabled=False):
        assert given.pow(2).dtype == torch.bfloat16


def test_logits_in_half_precision_are_not_copied_before_their_logarithms() -> None:
    """CUDA's cross_entropy takes logarithms in the type of the logits and sums them in fp32."""
    logits = torch.ones(8, 100, dtype=torch.bfloat16)

    with CudaEmulation(), autocast_as_on("cuda", enabled=True), Names() as seen:
        functional.cross_entropy(logits, torch.zeros(8, dtype=torch.long))

    before = seen.names[: seen.names.index("aten._log_softmax.default")]
    assert "aten._to_copy.default" not in before
    assert seen.types["aten._log_softmax.default"] == torch.bfloat16
    assert seen.types["aten.nll_loss_forward.default"] == torch.float32


def test_models_that_ask_hear_of_cudas_autocast() -> None:
    with autocast_as_on("cuda", enabled=True):
        assert torch.is_autocast_enabled()
    with autocast_as_on("cpu", enabled=True):
        assert not torch.is_autocast_enabled()
    assert not torch.is_autocast_enabled()


class Names(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.types: dict[str, torch.dtype] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(str(func))
        result = func(*args, **(kwargs or {}))
        (first, *_) = result if isinstance(result, tuple) else (result,)
        self.types[str(func)] = first.dtype
        return result


@pytest.mark.parametrize(
    ("dtype", "masked", "kernel"),
    [
        (torch.bfloat16, False, "flash"),
        (torch.float32, False, "efficient"),  # flash attention computes in 16 bits alone
        (torch.bfloat16, True, "efficient"),  # and takes no mask
    ],
)
def test_attention_takes_the_kernels_of_cuda(dtype: torch.dtype, masked: bool, kernel: str) -> None:
    query = torch.ones(2, 4, 8, 12, dtype=dtype, device="meta", requires_grad=True)
    mask = torch.ones(2, 1, 8, 8, dtype=torch.bool, device="meta") if masked else None

    with Names() as seen, CudaEmulation():
        result = functional.scaled_dot_product_attention(
            query, query, query, attn_mask=mask, dropout_p=0.1
        )

    assert any(f"_scaled_dot_product_{kernel}_attention" in name for name in seen.names)
    assert result.shape == query.shape
