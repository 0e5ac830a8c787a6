"""Compiled blocks train the same under the same memory limit, and leave nothing behind."""

import gc
import os
import shutil
import stat
import subprocess
import sys
import weakref
from getpass import getuser
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import nn

from search_spaces.plan import CompileMode
from search_spaces.settings.blocks import render_blocks
from search_spaces.trial import Measured, Outcome, TrialRequest
from tests.workers.launch import Group
from tests.workers.one_step import built
from tests.workers.test_same_training import LOSS_TOLERANCE
from tests.workers.values import GLOBAL_BATCH, a_plan, a_request, a_spec
from workers.entry import run_trial
from workers.parallel.apply import wrap_blocks
from workers.parallel.compile import load_compiler, missing_for_compile
from workers.plain_torch.data_parallel import without_ddp_splits
from workers.worker import Worker

COMPILE_SECONDS = 1700.0  # longest wait: a C++ compiler is at work, on a busy machine
CPU = torch.device("cpu")
FIXED = a_spec(data={"lengths": {32: 1}}, objective={"max_steps": 6, "max_seconds": 600})


def _run(worker: Worker, request: TrialRequest, cache: str) -> Outcome:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    return run_trial(request, worker)


def _left(worker: Worker, request: TrialRequest) -> bool:
    """Returns True if a compiled model is alive after it was closed and dropped."""
    load_compiler(worker.device)
    ours = built(worker, request)
    ours.step()
    module = weakref.ref(ours.module)
    ours.training.close()
    del ours
    gc.collect()
    return module() is not None


class AskedBlock(nn.Module):
    """A block that records how it is asked to compile."""

    def compile(self, *args: Any, **options: Any) -> None:
        self.options = (args, options)


@pytest.mark.parametrize("mode", get_args(CompileMode))
def test_blocks_are_compiled_in_the_mode_of_the_plan(mode: CompileMode) -> None:
    blocks = [AskedBlock(), AskedBlock()]
    settings = render_blocks(a_plan(compile=True, compile_mode=mode), len(blocks))

    wrap_blocks(nn.Sequential(*blocks), blocks, settings)

    assert [block.options for block in blocks] == [((), {"mode": mode})] * 2


class Wide(nn.Module):
    """Two projections with cheap operators around, of which a compiler recomputes a part."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x)).sin()).cos())


def _saved_by(_: Worker, budget: float, cache: str) -> tuple[int, list[torch.Tensor]]:
    """Returns bytes that two compiled blocks save for backward, without weights, and gradients."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    load_compiler(CPU)
    torch.manual_seed(0)
    blocks = [Wide(), Wide()]
    stack = nn.Sequential(*blocks)
    settings = render_blocks(a_plan(compile=True, checkpoint_budget=budget), len(blocks))
    wrap_blocks(stack, blocks, settings)
    saved = dict[int, int]()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if not any(tensor.data_ptr() == weight.data_ptr() for weight in stack.parameters()):
            saved[tensor.data_ptr()] = tensor.nbytes
        return tensor

    x = torch.linspace(-1, 1, 128 * 64).reshape(1, 128, 64)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = stack(x).square().mean()
    assert torch._functorch.config.activation_memory_budget == 1.0
    return sum(saved.values()), list(torch.autograd.grad(loss, list(stack.parameters())))


@pytest.mark.thorough
@pytest.mark.timeout(2 * COMPILE_SECONDS)
def test_compiled_blocks_save_less_with_a_budget_which_the_next_trial_has_not(
    alone: Group, tmp_path: Path
) -> None:
    if lack := missing_for_compile(CPU):
        pytest.skip(lack)
    found = [
        alone.call(_saved_by, budget, str(tmp_path), seconds=COMPILE_SECONDS)[0]
        for budget in (1.0, 0.5, 0.0, 1.0)
    ]

    whole, half, least, again = (saved for saved, _ in found)
    assert least < half < whole == again
    assert half <= least + 0.6 * (whole - least)
    for _, gradients in found[1:]:
        for own, expected in zip(gradients, found[0][1], strict=True):
            torch.testing.assert_close(own, expected)


LLAMA = a_spec(
    model={
        "name": "llama-3.2-1b",
        "config": {
            **{"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6},
            **{"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64},
            "vocab_size": 512,
        },
    },
    data={"lengths": {256: 1}},
    cluster={"memory_gib": 4},
    train={"sequence_length": 256},
    objective={"max_steps": 6, "max_seconds": 600},
)


@pytest.mark.thorough
@pytest.mark.timeout(4 * COMPILE_SECONDS)
def test_the_peak_falls_with_the_budget_as_with_the_share_of_recomputed_blocks(
    tmp_path: Path,
) -> None:
    """Prints what `docs/knobs.md` says; the resident memory of a rank is measured."""
    if lack := missing_for_compile(CPU):
        pytest.skip(lack)
    plans: dict[str, dict[str, float]] = {
        "all": {},
        "half": {"checkpoint_budget": 0.5},
        "none": {"checkpoint_budget": 0.0},
        "recomputed": {"checkpoint_ratio": 1.0},
    }
    peaks = {}
    for name, knobs in plans.items():
        group = Group(1, LLAMA)  # whose resident memory no other compilation has grown
        group.return_freed()
        shape = {"data": 1, "micro_batch": 8, "checkpoint_ratio": 0.0, "compile": True}
        request = a_request(LLAMA, **shape | knobs)
        (outcome,) = group.call(_run, request, str(tmp_path), seconds=COMPILE_SECONDS)
        group.stop()
        assert isinstance(outcome, Measured), outcome
        peaks[name] = outcome.memory.peak_bytes
        print(f"{name}: {peaks[name] / 1e6:.0f} MB")

    halfway = (peaks["all"] + peaks["recomputed"]) / 2
    assert peaks["recomputed"] < 0.7 * peaks["all"]
    assert peaks["half"] == pytest.approx(halfway, rel=0.1)
    assert peaks["none"] == pytest.approx(peaks["recomputed"], rel=0.1)


@pytest.mark.thorough
@pytest.mark.timeout(2 * COMPILE_SECONDS)
def test_compiled_blocks_and_loss_train_the_same_within_the_same_memory(
    alone: Group, tmp_path: Path
) -> None:
    """Uses one rank, since each rank would run a C++ compiler."""
    if lack := missing_for_compile(CPU):
        pytest.skip(lack)
    knobs = {"data": 1, "checkpoint_ratio": 1.0, "checkpoint_mode": "selective"}
    plain = alone.run(a_request(FIXED, **knobs))
    request = a_request(FIXED, compile=True, loss="compiled", **knobs)

    (compiled,) = alone.call(_run, request, str(tmp_path), seconds=COMPILE_SECONDS)
    after = alone.run(a_request(FIXED, **knobs))
    left = alone.call(_left, request, seconds=COMPILE_SECONDS)

    assert isinstance(plain, Measured)
    assert isinstance(compiled, Measured), compiled
    assert request.plan.global_batch == GLOBAL_BATCH
    assert compiled.losses == pytest.approx(plain.losses, rel=LOSS_TOLERANCE)
    assert 0 < compiled.costs.compile_seconds < compiled.costs.steps_seconds
    assert compiled.step_seconds.value < compiled.costs.compile_seconds
    assert isinstance(after, Measured)
    assert after.losses == plain.losses
    assert plain.costs.compile_seconds == after.costs.compile_seconds == 0
    assert left == [False]


def test_nothing_is_cut_at_buckets_and_the_setting_is_back_afterwards() -> None:
    def setting() -> object:
        return torch._dynamo.config.optimize_ddp

    before = setting()
    assert before
    assert not without_ddp_splits(setting)()
    assert setting() == before


def test_a_machine_without_a_compiler_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    if shutil.which("g++"):
        assert missing_for_compile(CPU) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    lack = missing_for_compile(CPU)
    assert lack is not None
    assert "install" in lack


@pytest.mark.thorough
@pytest.mark.parametrize("planted", ["a link", "another user's", "none"])
def test_compiled_code_is_kept_where_nobody_else_can_write(planted: str, tmp_path: Path) -> None:
    """Torch's own folder has a name that any user of the machine can make first."""
    named, elsewhere = tmp_path / f"torchinductor_{getuser()}", tmp_path / "elsewhere"
    elsewhere.mkdir()
    if planted == "a link":
        named.symlink_to(elsewhere)
    elif planted == "another user's":
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder away")
        named.mkdir()
        os.chown(named, 4242, 4242)
    kept = {name: value for name, value in os.environ.items() if "INDUCTOR" not in name}
    script = "import torch; from workers.parallel.compile import load_compiler as load;"
    script += "load(torch.device('cpu')); from torch._inductor.runtime.cache_dir_utils import *;"
    run = subprocess.run(
        [sys.executable, "-c", f"{script} print(cache_dir())"],
        env={**kept, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )

    folder = Path(run.stdout.strip())
    assert (folder == named) is (planted == "none")
    assert folder == named or not [*named.iterdir(), *elsewhere.iterdir()]
    assert list(folder.rglob("*.py"))  # code of the compiled function
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
