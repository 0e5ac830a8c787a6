"""Examples of the package and of the repository are valid."""

from pathlib import Path

import pytest

from search_spaces.errors import UserError
from search_spaces.presets.catalogue import preset_names
from search_spaces.specification.load import load_spec, parse_spec
from search_spaces.specification.template import RUNNABLE_EXAMPLES, example_files

FOLDER = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.name)
def test_each_specification_loads_and_names_a_preset(path: Path) -> None:
    assert load_spec(path).model.name in preset_names()


@pytest.mark.parametrize("name", RUNNABLE_EXAMPLES)
def test_an_example_brings_the_data_that_it_names(name: str) -> None:
    texts = example_files(name)
    spec = parse_spec(texts[f"{name}.yaml"], source=name)

    assert spec.model.name in preset_names()
    assert set(texts) == {f"{name}.yaml", *spec.data.files}


def test_the_demo_keeps_to_what_it_promises() -> None:
    spec = parse_spec(example_files("demo")["demo.yaml"], source="demo")

    assert 10 <= spec.budget.trials <= 12
    assert (spec.cluster.device, spec.cluster.workers) == ("cpu", 2)
    assert spec.memory_limit_bytes is not None


def test_an_unknown_example_lists_those_there_are() -> None:
    with pytest.raises(UserError, match="there is no example 'big'; the examples are demo"):
        example_files("big")
