"""Stored values of any other type, depth and size: every reading command ends with a sentence.

They are the study's in its database, those of its copy of the specification, and an export's.
"""

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.api import find_study
from orchestrator.core.events import SweepEnded
from orchestrator.core.reasons import AllTried, Sampled
from orchestrator.study.serialization import keep_taken_back
from orchestrator.study.study import Study
from search_spaces.errors import UserError
from search_spaces.facts import Understanding, planned_cluster
from search_spaces.rules.base import RuleContext
from search_spaces.settings.export_manifest import EXPORTED_FILE, ExportManifest
from search_spaces.space import build_space
from tests.fuzzing.run import OddFolder, odd_folder, run_line
from tests.orchestrator.export.values import an_export
from tests.orchestrator.records import make_record
from tests.orchestrator.tracking.test_mlflow import PROVENANCE
from tests.outcomes import CPU_FINGERPRINT, every_outcome, make_expectation
from workers.models.facts import model_facts

DATABASE = Path("plimsoll-runs/demo/study.db")
COMMANDS = (
    ("report", "demo"),
    ("report", "demo", "--json"),
    ("report", "demo", "--html", "--out", "page.html"),
    ("report", str(DATABASE)),
    ("explain", "demo", "--json"),
    ("explain", "demo", "--trial", "1"),
    ("explain", "demo", "--plan", "micro_batch=1"),
    ("export", "demo", "--format", "torchrun", "--out", "out"),
    ("export", "demo", "--format", "deepspeed", "--trial", "0", "--out", "out"),
    ("retry", "demo", "--crashed"),
    ("retry", "demo", "--trial", "1"),
    ("plan", "small.yaml", "--records", "demo"),
    ("sync", "demo"),
)
SPEC = Path("plimsoll-runs/demo/spec.yaml")
TABLES = {
    "study_user_attributes": "value_json",
    "trial_user_attributes": "value_json",
    "trial_system_attributes": "value_json",
    "trial_params": "distribution_json",
}
ODD = (
    *(None, True, False, 0, 1, -1, 0.5, -0.5, 7, 10**15, -(10**15), 10**30, 1e-300, 1e300, 2**63),
    *("", "x", "half \udce9", "\x1b[31m", "nan", "0"),
    *([], {}, [[]], [None], {"": None}, {"kind": "measured"}, ["x"] * 100),
)


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


RAW = (
    json.dumps("x" * 100_000),
    "",
    "{",
    "NaN",
    "Infinity",
    "-1e999",
    "1" * 5000,
    nested(3_000),
    nested(100_000),
)


@dataclass(frozen=True)
class Raw:
    """A text that is stored as it is."""

    text: str = field(repr=False)  # some are long


VALUE = (
    st.sampled_from(ODD)
    | st.sampled_from(RAW).map(Raw)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
        max_leaves=4,
    )
)

WHOLE: list[bytes] = []  # the database before any change


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OddFolder]:
    with odd_folder(tmp_path_factory.mktemp("stored")) as folder:
        _fill()
        WHOLE.append(DATABASE.read_bytes())  # no argument of the test, as hypothesis prints those
        yield folder


def _fill() -> None:
    """Gives the study `demo` one of each value that a study stores."""
    spec = find_study("demo").spec
    context = RuleContext(
        spec=spec, model=model_facts(spec.model, spec.train), cluster=planned_cluster(spec, 2)
    )
    study = Study(spec, "demo", build_space(context, 2))
    first, *_ = study.records()
    expected = make_expectation(20.0)
    full = replace(first, fingerprint=CPU_FINGERPRINT, forecast=expected, validation=True)
    study.keep_validation(full)
    study.keep_understanding(
        Understanding(data=None, model=context.model, cluster=context.cluster, ranks=2)
    )
    study.keep_provenance(PROVENANCE)
    plan = first.plan
    for outcome in every_outcome():
        number = study.ask(plan, Sampled(sampler="random"))
        record = make_record(number, plan, outcome)
        study.tell(replace(record, fingerprint=CPU_FINGERPRINT, forecast=expected))
    study.keep_end(SweepEnded(reason=AllTried(plans=15), at=1.79e9 + 60, untried=0))
    keep_taken_back(study._study, [4])
    study.ask(plan, Sampled(sampler="random"))  # still runs


@st.composite
def changes(draw: st.DrawFn) -> tuple[int, list[int], Any]:
    """Draws a stored value by its index, a way into it, and another value, or a text as it is."""
    way = draw(st.lists(st.integers(0, 40), max_size=6))
    return draw(st.integers(0, 400)), way, draw(VALUE)


def replaced(content: str, way: list[int], value: Any) -> str:
    """The JSON with a value at the end of the way, each step of which counts the parts there."""
    tree = json.loads(content)
    above, key, here = None, None, tree
    for step in way:
        if not (isinstance(here, dict | list) and here):
            break
        parts = list(here.items() if isinstance(here, dict) else enumerate(here))
        above, (key, here) = here, parts[step % len(parts)]
    if above is None:
        return json.dumps(value)
    above[key] = value
    return json.dumps(tree)


def change(number: int, way: list[int], value: Any) -> str:
    """Changes a stored value of the database; returns its name."""
    with closing(sqlite3.connect(DATABASE)) as database, database:
        rows = [
            (table, column, *row)
            for table, column in TABLES.items()
            for row in database.execute(f"SELECT rowid, {column} FROM {table}")
        ]
        table, column, row, content = rows[number % len(rows)]
        text = value.text if isinstance(value, Raw) else replaced(content, way, value)
        database.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (text, row))
    return f"{table} {row}"


NEVER_A_TRACEBACK = settings(
    max_examples=max(150, settings.default.max_examples),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Choices for a categorical distribution")  # of Optuna
@given(change_at=changes(), words=st.sampled_from(COMMANDS))
@NEVER_A_TRACEBACK
def test_n5_no_stored_value_ends_a_command_with_a_traceback_or_not_at_all(
    change_at: tuple[int, list[int], Any], words: tuple[str, ...], stored: OddFolder
) -> None:
    DATABASE.write_bytes(WHOLE[0])
    changed = change(*change_at)
    stored.keep()

    ending = run_line(stored, words, None)

    assert not ending.fault, f"{changed}: {ending.fault}"


@pytest.mark.thorough
@given(change_at=changes(), words=st.sampled_from(COMMANDS))
@NEVER_A_TRACEBACK
def test_n5_no_copy_of_a_specification_does(
    change_at: tuple[int, list[int], Any], words: tuple[str, ...], stored: OddFolder
) -> None:
    DATABASE.write_bytes(WHOLE[0])
    whole, (_, way, value) = SPEC.read_text(), change_at
    as_json = json.dumps(yaml.safe_load(whole))
    SPEC.write_text(value.text if isinstance(value, Raw) else replaced(as_json, way, value))
    stored.keep()

    ending = run_line(stored, words, None)

    SPEC.write_text(whole)
    assert not ending.fault, ending.fault


@given(way=st.lists(st.integers(0, 40), max_size=6), value=VALUE)
@NEVER_A_TRACEBACK
def test_n5_an_export_that_was_changed_is_read_or_refused(
    way: list[int], value: Any, tmp_path: Path
) -> None:
    whole = an_export().to_json()
    text = value.text if isinstance(value, Raw) else replaced(whole, way, value)
    (tmp_path / EXPORTED_FILE).write_text(text)

    with contextlib.suppress(UserError):
        assert isinstance(ExportManifest.read(tmp_path), ExportManifest)
