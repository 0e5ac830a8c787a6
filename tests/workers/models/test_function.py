"""Users' functions that return a model and its batch maker."""

import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from search_spaces.errors import DataError, ModelError
from search_spaces.facts import ModelFacts
from search_spaces.specification.schema import ModelSpec
from search_spaces.specification.sections import TrainSpec
from workers.models.function_probe import with_function_findings
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

DATA = [[float(number)] * 4 for number in range(40)]

def listed():
    return Net(4, 3), lambda numbers: {"x": torch.tensor([DATA[number] for number in numbers])}

def sliced():
    data = torch.ones(40, 4)
    return Net(4, 3), lambda numbers: {"x": data[numbers[0] : numbers[-1] + 1]}

def counted(samples=10):
    return *listed(), samples

class Sized:
    def __len__(self):
        return 10

    def __call__(self, numbers):
        return listed()[1](numbers)

def sized():
    return Net(4, 3), Sized()

def narrow(frozen=0):
    net = Net(4, 3).bfloat16()
    for layer in net.layers[:frozen]:
        layer.requires_grad_(False)
    return net, lambda numbers: {"x": torch.ones(len(numbers), 4, dtype=torch.bfloat16)}

def uneven():
    return Net(4, 3), lambda numbers: {"x": torch.ones(len(numbers), 1 + numbers[0] % 3, 4)}

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


def probed(spec: ModelSpec) -> ModelFacts:
    return with_function_findings(describe(spec, TRAIN), spec, TRAIN)


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
        ("net:counted 0", "says that its data has 0 samples, must be 1 or more"),
    ],
)
def test_says_what_is_wrong(function: str, said: str) -> None:
    name, _, samples = function.partition(" ")
    spec = _spec(name, **({"samples": int(samples)} if samples else {}))
    with pytest.raises(ModelError, match=said):
        describe(spec, TRAIN)
    with pytest.raises(ModelError, match=said):
        build(spec, TRAIN, attention="sdpa")


@pytest.mark.parametrize("function", ["net:counted", "net:sized"])
def test_sample_numbers_begin_again_where_the_data_ends(function: str) -> None:
    built = build(_spec(function), TRAIN, attention="sdpa")

    assert built.batch_maker is not None
    assert built.batch_maker((9, 10, 21))["x"][:, 0].tolist() == [9.0, 0.0, 1.0]
    probed(_spec(function))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            "net:listed",
            r"for sample 3999: IndexError: list index out of range \(net.py, li",
        ),
        ("net:sliced", "sample 3999: IndexError: the batch is empty"),
    ],
)
def test_data_that_ends_without_a_count_is_refused_before_a_trial(function: str, said: str) -> None:
    with pytest.raises(DataError, match=said) as refused:
        probed(_spec(function))
    assert "return (module, batch maker, number of samples)" in str(refused.value)

    with pytest.raises(DataError, match=r"sample 40: .* from 0 to 49 may come together"):
        probed(_spec("net:counted", samples=50))


def test_trained_weights_are_fp32_and_frozen_ones_are_counted() -> None:
    facts = describe(_spec("net:narrow"), TRAIN)

    assert (facts.widened, facts.trainable) == (("bfloat16",), None)
    assert describe(_spec("net:narrow", frozen=1), TRAIN).trainable_parameters == 40
    with pytest.raises(ModelError, match="without a weight that requires a gradient"):
        describe(_spec("net:narrow", frozen=3), TRAIN)


def test_inputs_of_uneven_shape_have_no_pipeline() -> None:
    assert describe(_spec("net:uneven"), TRAIN).pipeline_refusal == (
        "Net gets x of shape (1, 1, 4) for sample 0 and of (1, 2, 4) for sample 1, while stages"
        " exchange tensors of one shape: pad all samples to one length"
    )
