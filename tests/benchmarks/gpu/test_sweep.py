"""Figures of searches side by side; each way really searches."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.gpu.command import Asked
from benchmarks.gpu.found import Found
from benchmarks.gpu.sweep import FILE, cases, judged, measure, missing, read, spec_of, winners
from benchmarks.gpu.ways import OPTUNA, OURS, TRAINER, WAYS, trainers_endings
from tests.benchmarks.gpu.values import a_plan


def a_run(way: str, *endings: tuple[float, float], **special: Any) -> dict[str, Any]:
    usual = {
        "model": "m",
        "sequence_length": 2048,
        "way": way,
        "how": "made up",
        "minutes": 4.0,
        "best": None,
        "endings": [
            {"seconds": at, "rate": rate, "kind": "measured" if rate else "out_of_memory"}
            for at, rate in endings
        ],
    }
    return usual | special


RUNS = [
    a_run(OURS, (20, 5.0), (50, 10.0), (90, 14.0), (300, 99.0)),  # the last one is too late
    a_run(TRAINER, (30, 0.0), (60, 10.0)),
    a_run(OPTUNA, (60, 0.0), (120, 0.0), (220, 10.1)),
]


def figures(found: Found) -> dict[str, Any]:
    (case,) = found.figures["cases"]
    told: dict[str, Any] = case
    return told


def test_speed_and_time_are_beside_those_of_the_others() -> None:
    found = judged(RUNS)

    assert figures(found)["over_trainer"] == pytest.approx(1.4)
    assert figures(found)["over_optuna"] == pytest.approx(14 / 10.1)
    assert figures(found)["share_of_time"] == pytest.approx(50 / 220)  # 10.0 is within 2 % of 10.1
    assert [verdict.holds for verdict in found.verdicts] == [True, True, True]
    trials = {row["way"]: (row["trials"], row["out_of_memory"]) for row in found.rows}
    assert trials == {OURS: (3, 0), TRAINER: (2, 1), OPTUNA: (3, 2)}


@pytest.mark.parametrize(
    ("ours", "holds"),
    [
        (((90, 12.9),), [False, True, False]),  # 1.29 x, and level after 41 % of the time
        (((50, 9.0),), [False, False, False]),  # never level
        (((50, 14.0),), [True, True, True]),
    ],
)
def test_what_is_not_reached_is_told(
    ours: tuple[tuple[float, float], ...], holds: list[bool]
) -> None:
    found = judged([a_run(OURS, *ours), *RUNS[1:]])

    assert [verdict.holds for verdict in found.verdicts] == holds


def test_the_worst_case_counts_and_what_has_no_competitor_is_not_judged() -> None:
    longer = [run | {"sequence_length": 4096} for run in RUNS]
    longer[1] = a_run(TRAINER, (60, 13.0), sequence_length=4096)

    assert judged([*RUNS, *longer]).verdicts[0].reached == "1.08"
    assert [v.holds for v in judged(RUNS[:1]).verdicts] == [None, None, None]
    assert [v.holds for v in judged([]).verdicts] == [None, None, None]


def test_winners_are_plimsolls_own() -> None:
    best = {"plan": a_plan().as_dict(), "tokens_per_second": 5.0}
    runs = [a_run(OURS, (1, 1.0), best=best), a_run(OPTUNA, (1, 2.0), best=best), a_run(OURS)]

    assert winners(runs) == [{"model": "m", "sequence_length": 2048, **best}]


def test_a_search_is_run_once(asked: Asked) -> None:
    whole = replace(asked, tiny=False)
    every = list(missing(whole, []))
    assert len(every) == len(cases(whole)) * len(WAYS)
    short = replace(whole, short=True)
    assert [(case.name, way) for case, _, way in missing(short, [])] == [("llama-3.2-1b", OURS)]
    case, length, way = every[0]
    done = a_run(way, model=case.name, sequence_length=length)
    (asked.out / FILE).write_text(json.dumps(done) + '\n{"model": "cut sho')

    assert read(asked) == [done]
    assert list(missing(whole, read(asked))) == every[1:]


def test_without_time_no_search_is_begun(asked: Asked) -> None:
    late = replace(asked, tiny=False, until=asked.clock() + 60)

    found = measure(late)

    assert found.left == f"{2 * 4 * 3} searches were not run"
    assert found.rows == []


def test_the_trainers_lines_are_endings() -> None:
    lines = [
        '{"at": 110.0, "kind": "out_of_memory", "batch": 8, "rate": 0.0}',
        '{"at": 130.0, "kind": "measured", "batch": 7, "rate": 3.5}',
    ]

    told = trainers_endings(lines, 100.0)

    assert [(one.seconds, one.rate, one.kind) for one in told] == [
        (10.0, 0.0, "out_of_memory"),
        (30.0, 3.5, "measured"),
    ]


@pytest.mark.thorough
def test_each_way_searches_for_real(asked: Asked) -> None:
    found = measure(asked)

    assert found.left == ""
    rows = {row["way"]: row for row in found.rows}
    assert set(rows) == set(WAYS)
    assert rows[OURS]["best"] > 0
    assert rows[OURS]["trials"] == 3
    assert rows[TRAINER]["best"] > 0
    assert rows[OPTUNA]["trials"] == 3
    (best,) = json.loads((asked.out / "winners.json").read_text())
    assert best["plan"]["precision"] == "fp32"
    assert measure(asked).rows == found.rows  # nothing is searched twice


@pytest.mark.thorough
def test_under_ray_it_is_what_users_run(asked: Asked) -> None:
    under_ray = replace(asked, ray=True)
    ((case, length),) = cases(asked)
    spec = spec_of(case, length, tiny=True)

    mine, theirs = (WAYS[way](under_ray, spec, 1.5) for way in (OURS, OPTUNA))

    assert (mine.how, theirs.how) == ("under Ray", "Ray Tune with OptunaSearch")
    kinds = [ending.kind for ending in mine.endings]
    assert kinds[0] == "measured"
    # what is tried after it depends on speeds, and some plans do not fit
    assert len(kinds) == 3
    assert set(kinds) <= {"measured", "out_of_memory"}
    assert mine.best is not None
    assert mine.best["tokens_per_second"] > 0
    # Optuna draws its first plans at random: none of them may fit, or be legal
    assert {ending.kind for ending in theirs.endings} <= {"measured", "out_of_memory", "refused"}
    assert all(ending.rate > 0 for ending in theirs.endings if ending.kind == "measured")
    assert theirs.endings
