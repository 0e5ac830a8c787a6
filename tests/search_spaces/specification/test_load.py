"""`spec.load`: a specification, or every fault in it at once, in plain English."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.errors import SpecError
from search_spaces.specification.load import (
    load_spec,
    parse_spec,
    spec_to_yaml,
    study_name,
    with_budget,
)
from search_spaces.specification.schema import SweepSpec

LEAST = "model: gpt2\ntrain: {global_batch: 32}\n"


def with_train(keys: str) -> str:
    return LEAST.replace("}", f", {keys}}}")


def faults_of(text: str) -> dict[str, str]:
    """Returns the messages for a text that has faults, by path."""
    with pytest.raises(SpecError) as caught:
        parse_spec(text, source="demo.yaml")
    return {fault.path: str(fault).removeprefix(fault.path) for fault in caught.value.faults}


def test_a_section_whose_keys_are_all_commented_out_is_empty() -> None:
    text = (
        "model: gpt2\nbudget:\n  # trials: 3\ntrain:\n  global_batch: 32\n  lora:\n    # rank: 4\n"
    )
    spec = parse_spec(text, source="demo.yaml")

    assert (spec.budget.trials, spec.train.lora.rank) == (40, 8)


def test_numbers_and_booleans_read_as_people_write_them() -> None:
    spec = parse_spec(
        "model: {name: gpt2, config: {eps: 1e-6, when: 2024-01-01, octal: 010, time: 1:30}}\n"
        "train: {global_batch: 3_2, learning_rate: 1e-4, weight_decay: 0}\n"
        "tracking: {enabled: off}\ndata: {lengths: {512: 3, 1024: .5}}",
        source="demo.yaml",
    )

    assert spec.train.learning_rate == 1e-4
    assert spec.train.global_batch == 32
    assert spec.tracking.enabled is False
    assert spec.data.lengths == {512: 3.0, 1024: 0.5}
    assert spec.model.config == {"eps": 1e-6, "when": "2024-01-01", "octal": 10, "time": "1:30"}


def test_all_faults_are_reported_at_once() -> None:
    found = faults_of("""
        globl_batch: 3
        model: gpt2
        train: {global_batch: 0, learning_rate: x, precision: bf, precison: fp32, trials: 3}
        cluster: {workers: all, memory_gib: .inf}
        space: {zero_stage: [0, 4], micro_batch: 4, data: [yes], compile: true, overlap: [no]}
        study: {name: "a b", seed: 99999999999}
        objective: {min_steps: 7, max_steps: 6, headroom: 1}
        data: {files: [a.txt], lengths: {0: 1}}
        budget: [1]
    """)

    assert found.keys() == {
        "globl_batch",
        "train.global_batch",
        "train.learning_rate",
        "train.precision",
        "train.precison",
        "train.trials",
        "cluster.workers",
        "cluster.memory_gib",
        "space.zero_stage[1]",
        "space.micro_batch",
        "space.data[0]",
        "space.compile",
        "study.name",
        "study.seed",
        "objective.headroom",
        "data.lengths.0",
        "budget",
    }
    assert found["globl_batch"] == " is 3: no such key; did you mean train.global_batch?"
    assert found["train.global_batch"].startswith(" is 0: must be 1 or more (samples per optimizer")
    assert found["train.learning_rate"].startswith(' is "x": must be a number')
    assert found["train.precision"] == ' is "bf": must be fp32, bf16 or fp16'
    assert found["train.precison"] == ' is "fp32": no such key; did you mean precision?'
    assert found["train.trials"] == " is 3: no such key; it exists as budget.trials"
    assert found["cluster.workers"].startswith(' is "all": must be a whole number')
    assert found["cluster.workers"].endswith("or auto")
    assert found["space.zero_stage[1]"] == " is 4: must be 0, 1, 2 or 3"
    assert found["space.micro_batch"].startswith(" is 4: must be a list, such as [4]")
    assert found["space.data[0]"] == " is true: must not be true or false"
    assert found["space.compile"].startswith(" is true: must be a list, such as [true]")
    assert found["study.seed"].startswith(" is 99999999999: must be 4,294,967,295 or less")
    assert found["budget"].startswith(" is [1]: must be a section with some of the keys trials, ")


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("train: {global_batch: 1}", "model.name", ": is missing: a shipped preset"),
        ("model: gpt2", "train.global_batch", ": is missing: samples per optimizer step"),
        (LEAST + "data: {files: [a], lengths: {3: 1}}", "data", ": give files or lengths, not bot"),
        (LEAST + "space: {data: []}", "space.data", " is []: give at least one value"),
        (LEAST + "objective: {min_steps: 9, max_steps: 6}", "objective", ": max_steps is 6, must"),
        (LEAST + "seed: 3", "seed", " is 3: no such key; it exists as train.seed and as study.see"),
        (with_train("lora: {rnak: 4}"), "train.lora.rnak", " is 4: no such key; did you mean rank"),
        (LEAST + "zebra: 3", "zebra", " is 3: no such key; the keys here are model, data, "),
        (LEAST + "train: {global_batch: 2}", "train", ": is given twice, in lines 2 and 3; keep"),
        (LEAST + "on: 1", "file", ": has the key 'on' in line 3; keys must be text"),
        (LEAST + "data: {field: !!binary aGk=}", "data.field", ": has the tag 'binary'; only plai"),
        (LEAST + r'data: {field: "\ud800"}', "data.field", ": holds half of a surrogate pair"),
        (LEAST + "data: [", "line 3, column 8", ": is not valid YAML: expected"),
        ("a: b: c", "line 1, column 5", ": is not valid YAML: mapping values are not allowed"),
        ("a: 1\n---\nb: 2", "line 2, column 1", ": is not valid YAML: but found another document"),
        ("a: \x07", "position 3", ": the character U+0007 is not allowed in YAML"),
        ("- a", "file", ": is a list, but must hold sections"),
        ("gpt2", "file", ": is a single value, but must hold sections"),
        ("", "file", ": is empty; it needs at least `model: gpt2`"),
        ("a: &a [*a]", "file", ": holds more than 20,000 values or is nested deeper than 40"),
        ("[" * 5000, "file", ": holds more than 20,000 values or is nested deeper than 40"),
    ],
)
def test_says_what_would_be_valid(text: str, path: str, words: str) -> None:
    found = faults_of(text)

    assert path in found
    assert found[path].startswith(words)


def test_aliases_that_multiply_are_harmless() -> None:
    rows = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    rows += [
        f"{name}: &{name} [{', '.join([f'*{last}'] * 10)}]"
        for last, name in zip("abcdefghij", "bcdefghijk", strict=True)
    ]

    found = faults_of("\n".join(rows))  # all of them would take days

    assert found.keys() == {"file"}
    assert found["file"].startswith(": holds more than 20,000 values")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "does not exist; `plimsoll init` writes one"),
        (b"model: \xff", "is not UTF-8 text"),
        (b"#" * (2**20 + 1), "is larger than 1 MiB"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "demo.yaml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(SpecError, match=words) as caught:
        load_spec(path)

    assert caught.value.source == str(path)


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (
            "optimizer: adam",
            "there is no optimizer 'adam': adamw, sgd, adafactor, lion, muon or mod",
        ),
        ("momentum: 0.9", "adamw has no momentum: its keys are learning_rate, weight_decay, decay"),
        ("optimizer: sgd, betas: [0.9, 0.99]", "optimizer sgd has no betas"),
        ("optimizer: 'a.b:c', learning_rate: 1", "has no learning_rate: the function sets its"),
    ],
)
def test_an_optimizer_and_its_keys(train: str, words: str) -> None:
    (fault,) = faults_of(f"model: gpt2\ntrain: {{global_batch: 8, {train}}}").values()

    assert words in fault


def test_what_is_no_file_says_so(tmp_path: Path) -> None:
    for path, words in ((tmp_path, "is a folder"), (Path("a\0b"), "is not a valid file name")):
        with pytest.raises(SpecError, match=words):
            load_spec(path)


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "demo.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + LEAST.encode())

    assert load_spec(path).model.name == "gpt2"


@pytest.mark.parametrize(
    ("file", "name"),
    [("demo.yaml", "demo"), ("my sweep (2).yml", "my-sweep-2"), ("é.yaml", "sweep"), ("_x", "x")],
)
def test_the_study_is_named_after_the_file(file: str, name: str) -> None:
    spec = parse_spec(LEAST, source="x")

    assert study_name(spec, Path("some/where") / file) == name
    # what it gives is a name that the specification could hold, and one there goes first
    named = parse_spec(f"{LEAST}study: {{name: {name}}}", source="x")
    assert study_name(named, Path("other.yaml")) == name


def test_with_budget_changes_what_is_given_and_checks_it() -> None:
    spec = parse_spec(LEAST, source="x")

    assert with_budget(spec, trials=3, minutes=None).budget.trials == 3
    assert with_budget(spec, trials=None, minutes=None) == spec
    with pytest.raises(SpecError, match=r"budget.minutes is Infinity: must be a finite number"):
        with_budget(spec, trials=None, minutes=float("inf"))


# ---------------------------------------------------------------- properties

PRINTABLE = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | PRINTABLE
FINITE = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
)
TREES = st.recursive(
    SCALARS,
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(PRINTABLE | st.integers(), children, max_size=3)
    ),
    max_leaves=8,
)
KEYS = [
    (section, key)
    for section, field in SweepSpec.model_fields.items()
    for key in getattr(field.annotation, "model_fields", ("zero_stage", "compile", "other"))
]


def loads_or_says_why(text: str) -> None:
    try:
        spec = parse_spec(text, source="fuzz.yaml")
    except SpecError as error:
        said = str(error).encode()  # can be printed
        assert b"fault" in said
        return
    assert parse_spec(spec_to_yaml(spec), source="again") == spec


@given(st.text())
def test_any_text_loads_or_says_why(text: str) -> None:
    loads_or_says_why(text)


@given(st.text(alphabet="ab:-?[]{}&*!|>'\"%@`#, \n\t019.eE~<=_on", max_size=40))
def test_any_yaml_punctuation_loads_or_says_why(text: str) -> None:
    loads_or_says_why(text)
    loads_or_says_why(LEAST + text)


@given(st.dictionaries(st.sampled_from(KEYS), TREES, max_size=4), TREES)
def test_any_change_of_a_valid_one_loads_or_says_why(
    changes: dict[tuple[str, str], object], extra: object
) -> None:
    tree: dict[str, dict[str, object]] = {"model": {"name": "gpt2"}, "train": {"global_batch": 32}}
    for (section, key), value in changes.items():
        tree.setdefault(section, {})[key] = value

    loads_or_says_why(yaml.safe_dump(tree, allow_unicode=True))
    loads_or_says_why(yaml.safe_dump({**tree, "extra": extra}))
    loads_or_says_why(yaml.safe_dump({**tree, "model": extra}))


@given(
    name=PRINTABLE.filter(bool),
    config=st.dictionaries(PRINTABLE, FINITE, max_size=4),
    rate=st.floats(min_value=1e-300, max_value=1e300),
    folder=st.sampled_from(["1e4", "on", "~", "010", "2024-01-01", " a ", "null", "#x"]),
)
def test_what_is_written_reads_back_the_same(
    name: str, config: dict[str, object], rate: float, folder: str
) -> None:
    spec = SweepSpec.model_validate(
        {
            "model": {"name": name, "config": config},
            "train": {"global_batch": 1, "learning_rate": rate},
            "study": {"folder": folder},
            "data": {"lengths": {5: 1.0}},
        }
    )

    assert parse_spec(spec_to_yaml(spec), source="again") == spec


def test_a_price_that_is_compared_must_be_known() -> None:
    advice = "samples_per_price needs a price: set cluster.price_per_gpu_hour above 0"
    for asked in ("metric: samples_per_price", "at_least: {samples_per_price: 3}"):
        for price in ("", "cluster: {price_per_gpu_hour: 0}\n"):
            found = faults_of(f"{LEAST}{price}objective: {{{asked}}}\n")
            assert found.keys() == {"objective"}
            assert found["objective"].endswith(advice)

    priced = "cluster: {price_per_gpu_hour: 2.5}\nobjective: {metric: samples_per_price}\n"
    assert parse_spec(LEAST + priced, source="demo.yaml").objective.asks_for_price


def test_room_saves_no_time() -> None:
    asked = "objective: {metric: headroom}\nbudget: {training_hours: 10}\n"

    found = faults_of(LEAST + asked)

    assert found.keys() == {"budget"}
    assert "objective.metric headroom saves none: remove training_hours" in found["budget"]


@pytest.mark.parametrize(
    ("objective", "least"),
    [("{}", 12), ("{max_steps: 8}", 8), ("{max_steps: 20}", 12), ("{min_steps: 6}", 6)],
)
def test_a_small_maximum_of_steps_lowers_the_default_minimum(objective: str, least: int) -> None:
    spec = parse_spec(f"{LEAST}objective: {objective}\n", source="demo.yaml")

    assert spec.objective.min_steps == least
    assert parse_spec(spec_to_yaml(spec), source="again") == spec


def test_paths_have_homes_and_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.setenv("RUN", "big")
    monkeypatch.delenv("NO_SUCH", raising=False)
    paths = (
        "model: '~/${RUN}'\ntrain: {global_batch: 32}\ndata: {files: ['~/a${RUN}.txt'], tokenizer:"
        " '${RUN}'}\ncluster: {nvme_folder: '/x/${RUN}'}\nstudy: {folder: '~/runs'}"
    )
    spec = parse_spec(paths, source="demo.yaml")

    assert (spec.model.name, spec.data.files) == ("/home/ann/big", ("/home/ann/abig.txt",))
    assert (spec.data.tokenizer, spec.cluster.nvme_folder) == ("big", "/x/big")
    assert spec.study.folder == "/home/ann/runs"
    assert faults_of(paths.replace("'/x/${RUN}'", "'${NO_SUCH}'")) == {
        "cluster.nvme_folder": ": the environment variable NO_SUCH is not set"
    }
