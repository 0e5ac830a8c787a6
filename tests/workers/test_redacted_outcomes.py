"""A worker's outcome repeats no secret of its environment or of a library's message."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from search_spaces.trial import Crashed, OutOfMemory
from workers.entry import _ending_of

VALUE = "0123456789abcdef-of-a-variable"
TEXT = f"no answer from https://ann:S3CRET@hub/x with {VALUE}"


def _ending(error: Exception) -> Any:
    """Raises an error in a rank without a model, and returns its outcome."""
    meter = SimpleNamespace(bytes_in_use=lambda: 1, nearly_full=lambda: False, limit_bytes=2**30)
    worker: Any = SimpleNamespace(
        meter=meter, device=torch.device("cpu"), ranks=SimpleNamespace(rank=0)
    )
    try:
        raise error
    except Exception as raised:  # noqa: BLE001 - as the worker does
        return _ending_of(raised, "build", worker)


@pytest.mark.parametrize("kind", [ValueError, MemoryError])
def test_s5_neither_the_detail_nor_the_trace_has_secrets(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEAM_API_KEY", VALUE)

    outcome = _ending(kind(TEXT))

    assert isinstance(outcome, Crashed | OutOfMemory)
    texts = (outcome.detail, getattr(outcome, "trace", ""))
    assert "https://ann:***@hub/x with ***" in outcome.detail
    assert all(secret not in text for text in texts for secret in ("S3CRET", VALUE))
