"""Waiting for GPU memory to be released; the driver's answers are scripted, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from orchestrator.host import visible_gpu_bytes_in_use, wait_for_release

GIB = 2**30
THERE = {"GPU-a": 5 * GIB, "GPU-b": 0, "GPU-c": GIB}


def readings(*values: Mapping[str, int]) -> Iterator[Mapping[str, int]]:
    """Yields the values in sequence, then the last one forever."""
    yield from values
    while True:
        yield values[-1]


def test_what_a_driver_takes_a_while_to_have_back_is_awaited() -> None:
    told = readings({"GPU-a": 70 * GIB}, {"GPU-a": 30 * GIB}, {"GPU-a": GIB})

    assert wait_for_release({"GPU-a": GIB}, 60, lambda: next(told)) == ()
    assert next(told) == {"GPU-a": GIB}  # it was asked until then


def test_what_does_not_come_back_is_told_by_gpu() -> None:
    now = {"GPU-a": 13 * GIB, "GPU-b": 2 * GIB, "GPU-c": 40 * GIB}

    (told,) = wait_for_release({"GPU-a": 3 * GIB, "GPU-b": 2 * GIB - 2**20}, 0, lambda: now)

    assert told.startswith("10.0 GiB of GPU-a were not released within 0 s")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (None, ["GPU-a", "GPU-b", "GPU-c"]),
        ("2,0", ["GPU-c", "GPU-a"]),
        ("7, 1", ["GPU-b"]),
        ("MIG-1", []),
    ],
)
def test_a_process_sees_the_gpus_that_it_was_given(
    names: str | None, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if names is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)

    assert visible_gpu_bytes_in_use(lambda: THERE) == {uuid: THERE[uuid] for uuid in expected}
