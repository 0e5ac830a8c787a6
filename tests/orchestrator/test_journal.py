"""The journal; `tests/benchmarks/simulation/test_replay.py` decides on a whole one again."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.inputs import PlanProposed, Tick
from orchestrator.core.instructions import RequestCapacity
from orchestrator.core.notes import Message
from orchestrator.core.placement import Shortfall
from orchestrator.journal import Journal
from orchestrator.tracking.events import VERSION, line_of
from search_spaces.trial import Stopped
from tests.orchestrator.controller.sweeps import PlayedCluster, Sweep
from tests.orchestrator.event_lines import read_events
from tests.orchestrator.records import PROPOSED, make_plan, make_spec
from tests.outcomes import every_outcome

Make = Callable[..., Sweep]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "demo" / "journal.jsonl"


@pytest.fixture
def sweep(tmp_path: Path, file: Path) -> Make:
    """Returns a function that makes drivers of one study and one journal."""

    def said(text: str) -> None:
        raise AssertionError(text)

    spec = make_spec(
        study={"folder": str(tmp_path), "sampler": "random"},
        budget={"trials": 3, "minutes": 10, "trial_seconds": 60},
    )
    return lambda *cluster: Sweep(spec, *cluster, journal=Journal(file, said))


def lines_of(file: Path) -> list[dict[str, Any]]:
    def no_json(constant: str) -> None:
        raise ValueError(constant)

    return [json.loads(line, parse_constant=no_json) for line in file.read_text().splitlines()]


@dataclass
class Talking(PlayedCluster):
    """A cluster that has something to say as it starts a group."""

    say: Callable[[], None] = lambda: None

    def start_group(self, group: str) -> None:
        super().start_group(group)
        self.say()


def test_each_input_is_a_line_with_what_followed(sweep: Make, file: Path) -> None:
    """A note that comes while an instruction is carried out is the next line."""
    ours = sweep(Talking())
    ours.cluster.say = lambda: ours.controller.note(Message(text="slow"))  # type: ignore[attr-defined]
    ours.run(iter(every_outcome()[:3]))

    lines = lines_of(file)
    kinds = [line["input"]["kind"] for line in lines]
    said = kinds.index("Notice")
    assert kinds[0] == "DriverStarted"
    assert "StartGroup" in [one["kind"] for one in lines[said - 1]["instructions"]]
    assert lines[said]["events"][0]["text"] == "slow"
    assert lines[-1]["events"][-1]["event"] == "sweep_ended"
    assert {(line["version"], line["study"]) for line in lines} == {(VERSION, "demo")}
    assert read_events(file) == [line_of(event, state) for event, state in ours.recorder.heard]


def test_a_driver_that_gives_up_says_so(sweep: Make, file: Path) -> None:
    ours = sweep()
    ours.ask()
    ours.controller.give_up(Stopped(by="the head has died"))

    stop, end = lines_of(file)[-2:]
    assert (stop["input"]["kind"], end["input"]["kind"]) == ("StopRequested", "EndWritten")
    assert [event["event"] for event in stop["events"]] == ["trial_ended"]


def test_a_driver_adds_to_what_one_before_left_torn(sweep: Make, file: Path) -> None:
    sweep().ask()
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:40])  # killed while it wrote

    sweep()

    first, torn, *second = file.read_bytes().removeprefix(whole).partition(b"\n")
    assert (first, torn) == (whole[:40], b"\n")
    assert json.loads(second[0].splitlines()[0])["input"]["kind"] == "DriverStarted"


def test_a_file_that_cannot_be_written_costs_the_sweep_nothing(file: Path) -> None:
    """A folder has the name of the file for some time; later inputs are written."""
    said = list[str]()
    journal = Journal(file, said.append)
    file.mkdir(parents=True)
    journal.record(Tick(at=0.0), (), "demo")
    journal.write()
    file.rmdir()
    journal.record(Tick(at=1.0), (), "demo")
    journal.close()

    assert [line["input"]["at"] for line in lines_of(file)] == [1.0]
    problem = "it is no regular file; remove it, or choose another name"
    assert said == [f"{file} lacks some lines of the sweep: {problem}"]


def test_values_that_json_lacks(file: Path) -> None:
    """Another process, such as that of a replay, has another order of its sets."""
    names, journal = frozenset("hgfedcba"), Journal(file)
    proposed = PlanProposed(plan=make_plan(), reason=PROPOSED, seconds=inf)
    journal.record(proposed, (RequestCapacity(need=Shortfall(nodes=names)),), "demo")
    journal.close()

    (line,) = lines_of(file)
    assert line["input"]["seconds"] == "Infinity"
    assert line["instructions"][0]["need"]["nodes"] == sorted(names)
