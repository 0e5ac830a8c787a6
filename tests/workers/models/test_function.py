"""Users' functions that return a model and its batch maker."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from search_spaces.errors import ModelError
from search_spaces.spec.schema import ModelSpec
from search_spaces.spec.sections import TrainSpec
from workers.models.load import build, describe

TRAIN = TrainSpec(global_batch=4)
CODE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()

class Direct(Net):
    def forward(self, x):
        for layer in self.layers:
            x = layer.forward(x)
        return x.square().mean()

def direct():
    return Direct(4, 3), lambda numbers: {"x": torch.ones(len(numbers), 4)}

def make(width=4, layers=3):
    return Net(width, layers), lambda numbers: {"x": torch.ones(len(numbers), width)}

def drawn_elsewhere():
    import random
    import numpy
    net = Net(2, 2)
    with torch.no_grad():
        net.layers[0].weight.copy_(torch.from_numpy(numpy.random.randn(2, 2)))
        net.layers[1].weight.fill_(random.random())
    return net, lambda numbers: {}

def wrong():
    return Net(2, 2)

def broken():
    raise KeyError("mine")

def ends():
    raise SystemExit(3)

def real_only():
    net = Net(2, 2)
    print(float(net.layers[0].weight[0, 0]))
    return net, lambda numbers: {}
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "plimsoll_test_package"
    package.mkdir()
    (package / "net.py").write_text(CODE)
    (package / "typo.py").write_text("import torch\n\nmake = nothing\n")
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.startswith("plimsoll_test_package")]:
        monkeypatch.delitem(sys.modules, name)


def _spec(function: str, **config: int) -> ModelSpec:
    return ModelSpec(name=f"plimsoll_test_package.{function}", config=config)


def test_blocks_that_are_called_past_their_hooks_are_a_fact() -> None:
    assert describe(_spec("net:direct"), TRAIN).bypasses_hooks
    assert not describe(_spec("net:make"), TRAIN).bypasses_hooks


def test_facts_and_build() -> None:
    spec = _spec("net:make", layers=5)

    facts, built = describe(spec, TRAIN), build(spec, TRAIN, attention="eager")

    assert (facts.parameters, facts.blocks, facts.architecture) == (5 * 20, 5, "Net")
    assert (facts.attentions, facts.packing) == (("sdpa",), ())
    assert built.batch_maker is not None
    assert len(built.blocks) == 5
    assert torch.isfinite(built.module(**built.batch_maker((0, 1))))


def test_every_rank_draws_the_same_weights_by_numpy_and_python_too() -> None:
    """Each rank builds the model for itself, and has drawn other numbers before."""
    spec, ranks = _spec("net:drawn_elsewhere"), []
    for rank in range(2):
        np.random.seed(rank)
        random.seed(rank)
        ranks.append(build(spec, TRAIN, attention="sdpa").module.state_dict())
        assert random.random() == random.Random(rank).random()  # its own go on as before

    assert all(torch.equal(ranks[0][name], ranks[1][name]) for name in ranks[0])


@pytest.mark.parametrize("function", ["net:broken", "net:real_only", "net:ends"])
def test_what_cannot_be_described_is_left_to_the_trial(function: str) -> None:
    facts = describe(_spec(function), TRAIN)

    assert (facts.parameters, facts.blocks) == (0, 0)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("net:wrong", r"returned Net, must return \(module, batch maker\)"),
        ("net:mke", "has no function mke, did you mean make"),
        ("nett:make", "plimsoll_test_package.nett cannot be imported: No module named"),
        ("typo:make", r"typo cannot be imported: NameError: .*'nothing'.* \(typo.py, line 3\)$"),
        ("net:", "is not of the form package.module:function"),
    ],
)
def test_says_what_is_wrong(function: str, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        describe(_spec(function), TRAIN)
    with pytest.raises(ModelError, match=said):
        build(_spec(function), TRAIN, attention="sdpa")
