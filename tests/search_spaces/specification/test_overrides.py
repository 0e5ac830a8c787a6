"""`--set`: values from the command line, and their faults."""

import pytest

from search_spaces.errors import SpecError
from search_spaces.specification.load import parse_spec
from search_spaces.specification.schema import SweepSpec

TEXT = "model: gpt2\ntrain: {global_batch: 32}\n"


def overridden(*overrides: str) -> SweepSpec:
    return parse_spec(TEXT, source="demo.yaml", overrides=overrides)


def test_values_are_read_as_yaml_and_the_last_of_a_key_wins() -> None:
    spec = overridden(
        "train.global_batch=8",
        "train.global_batch=64",
        "space.micro_batch=[1, 2]",
        "validation.enabled=no",
        "train.learning_rate=1e-4",
        "cluster.memory_gib=0.5",
        "cluster.memory_gib=",
    )

    assert spec.train.global_batch == 64
    assert spec.space.micro_batch == (1, 2)
    assert spec.validation.enabled is False
    assert spec.train.learning_rate == 1e-4
    assert spec.cluster.memory_gib is None


def test_short_forms_of_the_file_can_be_set_into() -> None:
    spec = overridden("model.config.n_layer=2")

    assert (spec.model.name, spec.model.config) == ("gpt2", {"n_layer": 2})
    assert overridden("model=bert-large").model.name == "bert-large"
    for text in ("a.txt", "[a.txt]", "{files: a.txt}", "{files: [a.txt]}"):
        assert overridden(f"data={text}", "data.split=line").data.files == ("a.txt",)


def test_the_file_may_lack_what_the_command_line_sets() -> None:
    spec = parse_spec("model: gpt2\n", source="x", overrides=["train.global_batch=4"])

    assert spec.train.global_batch == 4


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.globl_batch=3", "no such key; did you mean global_batch?"),
        ("global_batch=3", "it exists as train.global_batch"),
        ("train=3", "must be a section with some of the keys global_batch"),
        ("train.global_batch", "is not KEY=VALUE, such as train.global_batch=64"),
        ("train.global_batch=[", "is not valid YAML"),
        ("study.name=a\nmodel: b", "holds more than one value"),
        ("train.global_batch=0", "is 0: must be 1 or more"),
        ("cluster.workers=true", "must not be true or false"),
        ("model.confg.n_layer=2", "did you mean config?"),
    ],
)
def test_a_fault_names_the_flag_and_what_would_be_right(override: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        overridden(override)

    (fault,) = caught.value.faults
    assert fault.path.startswith("--set ")
    assert f"--set {override.partition('=')[0]}".startswith(fault.path)
    assert words in str(fault)


def test_faults_of_the_file_do_not_name_the_flag() -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(
            "model: gpt2\ntrain: {global_batch: 0}", source="x", overrides=["budget.trials=0"]
        )

    assert [fault.path for fault in caught.value.faults] == [
        "train.global_batch",
        "--set budget.trials",
    ]
