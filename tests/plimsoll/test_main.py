"""Setup of the command before it imports any package."""

import gc
import sys
from collections.abc import Iterator

import pytest

from plimsoll.__main__ import OBJECTS_BEFORE_COLLECTION, main

USUAL = gc.get_threshold()


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    """Restores the garbage collector's threshold."""
    yield
    gc.set_threshold(*USUAL)


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (["models", "--help"], OBJECTS_BEFORE_COLLECTION),
        (["trial", "--help"], USUAL[0]),  # whose memory is to be that of a user's own script
    ],
)
def test_garbage_is_looked_for_less_often_except_while_training(
    words: list[str], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["plimsoll", *words])

    with pytest.raises(SystemExit) as ended:
        main()

    assert not ended.value.code
    assert gc.get_threshold()[0] == first
