"""DeepSpeed's operators are compiled once on a machine, with a word, by a process of their own."""

from pathlib import Path

import pytest

from search_spaces.trial import Activity, ActivityKind
from tests.search_spaces.values import a_spec
from workers.probe.operators import compile_operators

OFFLOADED = a_spec(
    cluster={"device": "cpu"},
    space={"engine": ["deepspeed"], "zero_stage": [2], "offload_optimizer": ["cpu"]},
)


def test_a_sweep_without_offload_by_deepspeed_compiles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    said: list[object] = []
    for space in ({}, {"engine": ["deepspeed"]}):  # which compiles nothing without offload
        spec = a_spec(cluster={"device": "cpu"}, space=space)
        assert compile_operators(spec, said.append, said.append) == 0.0
    assert said == []
    assert not any(tmp_path.iterdir())


@pytest.mark.thorough
@pytest.mark.slow
def test_a_folder_of_ones_own_is_filled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    shown: list[Activity] = []
    said: list[str] = []

    first = compile_operators(OFFLOADED, shown.append, said.append)
    again = compile_operators(OFFLOADED, shown.append, said.append)

    assert shown == [Activity(kind=ActivityKind.COMPILING_OPERATORS)]
    assert not said
    assert (first > 1.0, again) == (True, 0.0)
    assert (tmp_path / "cpu_adam" / "cpu_adam.so").exists()


@pytest.mark.thorough
@pytest.mark.slow
def test_a_failure_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "file"
    folder.touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(folder))
    said: list[str] = []

    assert compile_operators(OFFLOADED, lambda _: None, said.append) == 0.0

    assert len(said) == 1, said
    assert said[0].startswith("DeepSpeed's operators could not be loaded: ")
    assert "\n" not in said[0]
