"""Copies of fake tensors: they share the mode, and no reference to a storage is copied."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from workers.models.fake_memory import FakeMemory


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_a_copied_module_shares_its_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reference gives its storage back: with a copy twice, which corrupted the heap."""

    def refuse(self: StorageWeakRef, memo: object) -> None:
        raise AssertionError("copied")

    monkeypatch.setattr(StorageWeakRef, "__deepcopy__", refuse, raising=False)
    mode, real = FakeMemory(), torch.ones(4)
    with mode:
        module = nn.BatchNorm1d(4)
        module.mark = real + 0  # the mode now knows the storage of a real one

    copied = copy.deepcopy(module)

    assert copied.mark.fake_mode is mode
    assert copied.weight.fake_mode is mode
    assert copied.weight is not module.weight
