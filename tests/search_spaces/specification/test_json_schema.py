"""`json_schema`: accepts the same files as the specification, and describes every key."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from search_spaces.errors import SpecError
from search_spaces.specification.json_schema import json_schema
from search_spaces.specification.load import parse_spec, spec_to_yaml
from search_spaces.specification.schema import SweepSpec
from search_spaces.specification.template import commented_template
from search_spaces.specification.yaml_reader import read_tree

ROOT = Path(__file__).parents[3]
LEAST: dict[str, Any] = {"model": "gpt2", "train": {"global_batch": 32}}
SCHEMA = Draft202012Validator(json_schema())


def faults(tree: Any) -> list[str]:
    """Returns the keys with errors, such as `train.global_batch`; keys are text, as in editors."""
    found = SCHEMA.iter_errors(json.loads(json.dumps(tree)))
    return sorted(".".join(map(str, error.absolute_path)) for error in found)


def test_it_is_a_schema_itself() -> None:
    Draft202012Validator.check_schema(json_schema())


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda f: f.name)
def test_every_example_is_valid(file: Path) -> None:
    assert faults(yaml.safe_load(file.read_text(encoding="utf-8"))) == []


def test_what_plimsoll_writes_is_valid() -> None:
    for text in (commented_template(), spec_to_yaml(SweepSpec.model_validate(LEAST))):
        tree, _ = read_tree(text)

        assert tree is not None
        assert faults(tree) == []


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({}, None),
        ({"model": {"name": "gpt2", "config": {"n_layer": 2, "deep": {"any": [1]}}}}, None),
        ({"data": {"lengths": {16: 1.0, 128: 2}}}, None),
        ({"space": None, "objective": None}, None),  # all below is commented out
        ({"space": {"zero_stage": [0, 3], "checkpoint_ratio": [0, 0.5]}}, None),
        ({"model": 3}, "model"),
        ({"traim": {}}, ""),  # a typo: named by the section that it stands in
        ({"train": {"global_batch": 32, "sequence_lenght": 128}}, "train"),
        ({"train": {"global_batch": 0}}, "train"),
        ({"space": {"zero_stage": [4]}}, "space"),
        ({"space": {"micro_batch": 4}}, "space"),
        ({"data": {"lengths": {"long": 1.0}}}, "data"),
    ],
)
def test_it_takes_what_the_specification_takes(changes: dict[str, Any], where: str | None) -> None:
    tree = LEAST | changes

    # which of the ways to write a section was meant, no schema can say: objections name the key
    assert [path.split(".")[0] for path in faults(tree)] == ([] if where is None else [where])
    try:
        parse_spec(yaml.safe_dump(tree), source="demo.yaml")
    except SpecError:
        assert where is not None
    else:
        assert where is None


def test_what_must_be_given_must_be_given() -> None:
    assert faults({}) == ["", ""]
    assert faults({"model": "gpt2", "train": {}}) == ["train"]


def test_every_key_says_what_it_is() -> None:
    schema = json_schema()
    for section in (schema, *schema["$defs"].values()):
        for key, told in section["properties"].items():
            assert told.get("description"), key
            assert "title" not in told
