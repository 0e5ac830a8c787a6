"""Transfer from other studies of the same job."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from orchestrator.core.reasons import Promising
from orchestrator.core.records import Record
from orchestrator.report.reasons import note_words
from orchestrator.search.plimsoll import PlimsollProposer
from orchestrator.search.transfer import EarlierStudy, transfer_note
from orchestrator.study.reader import earlier_studies
from orchestrator.study.study import Study
from search_spaces.plan import Plan
from search_spaces.space import Space
from search_spaces.trial import Fingerprint, Measured, Outcome
from tests.orchestrator.records import PROPOSED, make_record, make_space, make_spec, searching
from tests.orchestrator.study.values import next_plan, outcome_of, rate, share_of_limit, study_spec
from tests.outcomes import CPU_FINGERPRINT, make_measured

SPEC = make_spec(train={"global_batch": 128, "sequence_length": 128})
OLDER = replace(CPU_FINGERPRINT, versions=(("torch", "2.11.0"),))
ELSEWHERE = replace(CPU_FINGERPRINT, device_name="another")


@pytest.fixture(scope="module")
def space() -> Space:
    return make_space(SPEC)


def record(number: int, plan: Plan, outcome: Outcome, seen: Fingerprint) -> Record:
    return replace(make_record(number, plan, outcome), fingerprint=seen)


def earlier(space: Space, seen: Fingerprint, factor: float = 1.0, every: int = 3) -> EarlierStudy:
    """Returns a study of one in `every` plans, drawn at random, with speeds scaled by `factor`."""
    records = []
    drawn = np.random.default_rng(0).permutation(len(space.table))[::every].tolist()
    for number, plan in enumerate(space.table.plan(row) for row in drawn):
        outcome = outcome_of(plan)
        if isinstance(outcome, Measured):
            outcome = make_measured(rate(plan) * factor, share_of_limit(plan))
        records.append(record(number, plan, outcome, seen))
    return EarlierStudy(name="before", records=tuple(records))


def searched(
    space: Space, before: EarlierStudy, trials: int
) -> tuple[list[Record], list[Promising]]:
    proposer = PlimsollProposer(space, SPEC, 0, [before])
    records, reasons = list[Record](), list[Promising]()
    for number in range(trials):
        proposal = proposer.propose(searching(SPEC, space, records), None)
        plan = proposal.plan if number else space.baseline
        assert isinstance(proposal.reason, Promising)
        reasons.append(proposal.reason)
        records.append(record(number, plan, outcome_of(plan), CPU_FINGERPRINT))
    return records, reasons


def best_share(space: Space, records: list[Record]) -> float:
    """Returns the best speed that was found, relative to the best of the space."""
    fitting = [plan for plan in space.candidates if share_of_limit(plan) <= 0.95]
    found = [rate(r.plan) for r in records if share_of_limit(r.plan) <= 0.95]
    return max(found) / max(rate(plan) for plan in fitting)


@pytest.mark.parametrize(("seen", "factor"), [(CPU_FINGERPRINT, 1.0), (OLDER, 1.2), (OLDER, 0.85)])
def test_what_was_learned_before_need_not_be_learned_again(
    space: Space, seen: Fingerprint, factor: float
) -> None:
    """The same on other software, where all plans were faster or slower."""
    records, _ = searched(space, earlier(space, seen, factor), 3)
    alone, _ = searched(space, EarlierStudy(name="before", records=()), 3)

    assert best_share(space, records) >= 0.95 > best_share(space, alone)
    assert all(isinstance(r.outcome, Measured) for r in records)


def test_studies_of_the_same_job_are_found(tmp_path: Path) -> None:
    """Studies of other jobs, and files that are no studies, are skipped."""
    ours = study_spec(tmp_path)
    for name, spec in {
        "same": ours,
        "more-memory": ours.model_copy(
            update={"cluster": ours.cluster.model_copy(update={"memory_gib": 1.0})}
        ),
        "other-batch": make_spec(
            train={"global_batch": 32, "sequence_length": 128}, study={"folder": str(tmp_path)}
        ),
        "mine": ours,
    }.items():
        study = Study(spec, name, make_space(spec))
        plan = next_plan(study)
        number = study.ask(plan, PROPOSED)
        outcome = make_measured(1.0)
        study.tell(record(number, plan, outcome, CPU_FINGERPRINT))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "study.db").write_text("no database")

    found = earlier_studies(ours, "mine")

    assert sorted(study.name for study in found) == ["more-memory", "same"]
    assert all(len(study.records) == 1 for study in found)


def test_sources_are_named_with_how_far_they_are_trusted(space: Space) -> None:
    studies = [
        replace(earlier(space, seen), name=name)
        for name, seen in {"same": CPU_FINGERPRINT, "older": OLDER, "away": ELSEWHERE}.items()
    ]
    count = len(studies[0].records)
    off = math.hypot(2, 10)

    notes = [transfer_note(study, CPU_FINGERPRINT) for study in studies]
    assert tuple(map(note_words, notes)) == (
        f"{count} trials transferred from study same, uncertainty 2 %",
        f"{count} trials transferred from study older, uncertainty {off:.0f} %"
        " (ray missing, here 2.60.0; torch 2.11.0, here 2.13.0)",
        "no trials transferred from study away: it ran on another device",
    )
