"""Random input of users: it is taken, or refused in a sentence; what is refused leaves no trace."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from orchestrator.api import find_study
from orchestrator.cli.trial import read_plan
from orchestrator.explain.context import complete_plan, knob_args
from orchestrator.study.study import check_study
from orchestrator.tracking.mlflow_reachability import check_tracking
from orchestrator.workspace import save_spec
from search_spaces.errors import SpecError, UserError
from search_spaces.hardware.catalogue import known_device
from search_spaces.hardware.files import read_devices
from search_spaces.plan import Plan
from search_spaces.specification.load import parse_spec, study_name
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Refused
from tests.orchestrator.records import make_spec
from tests.plans import ddp_plan

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
KNOBS = ddp_plan().as_dict()
DEVICE = {"name": "mine", "based_on": "H100"}
LONG = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


CHANGES = st.dictionaries(st.sampled_from(sorted(KNOBS)) | TEXT, TREES, max_size=4)


@given(content=st.binary(max_size=60) | CHANGES.map(lambda each: json.dumps(KNOBS | each).encode()))
@LONG
def test_any_bytes_and_any_change_of_a_plan_are_one_or_a_sentence(
    content: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "plan.json"
    file.write_bytes(content)
    try:
        assert isinstance(read_plan(file), Plan)
    except UserError as error:
        says_where(error, "plan.json")


def says_where(error: UserError, *places: str) -> None:
    """A message that can be printed, and names what is wrong."""
    said = str(error)
    assert said.encode()
    assert any(place in said for place in places), said
    assert "Traceback (most" not in said  # a key may have the name


@given(st.text(alphabet="ab:-?[]{}&*!|>'\"%@`#, \n\t019.eE~<=_on", max_size=40) | TEXT)
@LONG
def test_any_text_is_devices_or_a_sentence(text: str) -> None:
    devices_or_says_why(text)


FIELDS = ["memory_gib", "tflops", "node_devices", "name", "based_on"]


@given(changes=st.dictionaries(st.sampled_from(FIELDS) | TEXT, TREES, max_size=4), extra=TREES)
@LONG
def test_any_change_of_a_device_is_one_or_a_sentence(
    changes: dict[str, object], extra: object
) -> None:
    devices_or_says_why(yaml.safe_dump(DEVICE | changes, allow_unicode=True))
    devices_or_says_why(yaml.safe_dump({"devices": [DEVICE, extra]}, allow_unicode=True))


def devices_or_says_why(text: str) -> None:
    try:
        read_devices(text, source="mine.yaml", lookup=known_device)
    except SpecError as error:
        says_where(error, "mine.yaml")


SCHEMES = st.sampled_from(
    ["sqlite:///", "sqlite://", "postgresql://", "mysql://", "http://", "file://", "x+y://", ""]
)
# where nothing listens, so that no example asks another machine
HOSTS = st.sampled_from(
    [
        *("127.0.0.1:1/", "u:p@127.0.0.1:1/", "[::1]:1/", "127.0.0.1:99999/"),
        *("[:1/", ":/", "\x80\ufff9/"),  # no hosts at all
    ]
)


@given(address=st.builds("{}{}{}".format, SCHEMES, HOSTS, TEXT))
@example(address="sqlite:////proc/self/nothing/study.db")
@example(address="sqlite:///missing/study.db")
@settings(LONG, max_examples=60)
def test_any_address_of_a_storage_or_server_opens_or_is_a_sentence(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = listing(tmp_path)
    stored, tracked = named(study={"storage": address}), named(tracking={"uri": address})
    try:
        if stored is not None:
            check_study(stored, "demo")
    except UserError as error:
        says_where(error, "study.storage")
        assert listing(tmp_path) == before
    try:
        if tracked is not None:
            check_tracking(tracked)
    except UserError as error:
        says_where(error, "tracking.uri", "MLFLOW_TRACKING_URI", "MLflow")


@given(name=TEXT)
@LONG
def test_any_name_of_a_study_is_a_folder_of_its_own_or_a_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = named(study={"name": name, "folder": "runs"})
    if spec is None:
        return
    try:
        save_spec(spec, study_name(spec, Path("demo.yaml")))
    except UserError as error:
        says_where(error, "study")
    assert [path.name for path in tmp_path.iterdir()] in (["runs"], [])


VALUES = st.sampled_from(["0", "1", "2", "8", "0.5", "cpu", "none", "true", "1f1b"]) | TEXT
WORDS = st.builds("{}={}".format, st.sampled_from(sorted(KNOBS)), VALUES)


@given(words=st.lists(TEXT | WORDS, max_size=3))
@example(words=["micro_batch=\u0664"])  # a digit, and no ASCII one
@LONG
def test_any_words_are_knobs_or_a_sentence(words: list[str]) -> None:
    try:
        asked = knob_args(words)
    except UserError as error:
        says_where(error, "--plan")
        return
    made = complete_plan(asked, ddp_plan(), {}, ddp_plan().global_batch)
    assert isinstance(made, Plan | Refused)


@given(content=st.binary(max_size=60), head=st.sampled_from([b"", b"SQLite format 3\0"]))
@example(content=b"\x10\x00\x02\x02", head=b"SQLite format 3\0")
@LONG
def test_any_file_is_a_study_or_a_sentence(
    content: bytes, head: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("theirs.db")
    file.write_bytes(head + content)
    with pytest.raises(UserError) as caught:
        find_study(str(file))
    says_where(caught.value, "theirs.db")
    assert file.read_bytes() == head + content
    # SQLite itself leaves empty files beside a damaged one whose header names its log mode
    own = [tmp_path / f"theirs.db-{name}" for name in ("shm", "wal")]
    assert [one for one in listing(tmp_path) if one not in own] == [tmp_path / file]


@given(name=TEXT)
@example(name="x" * 5000)
@example(name=".")
@LONG
def test_any_name_is_a_study_or_a_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        find_study(name)
    places = ("neither a specification nor a study", "does not exist", "study.storage")
    says_where(caught.value, *places)  # the latter of an address, which has "://"
    assert listing(tmp_path) == []


def named(**sections: dict[str, str]) -> SweepSpec | None:
    """The specification with these sections; None where it says what is wrong with them."""
    tree = make_spec().model_dump(mode="json") | sections
    try:
        return parse_spec(yaml.safe_dump(tree, allow_unicode=True), source="demo.yaml")
    except SpecError as error:
        says_where(error, "study", "tracking")
        return None


def listing(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))
