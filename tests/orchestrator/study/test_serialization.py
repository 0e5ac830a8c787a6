"""Provenance in a study: one per driver, as the next driver and `plimsoll sync` read it."""

from dataclasses import replace

from orchestrator.study.reader import load_provenances
from orchestrator.study.study import Study
from search_spaces.facts import CodeVersion, DataProfile, LengthBin, Provenance
from search_spaces.specification.schema import SweepSpec
from tests.orchestrator.records import make_space

PROVENANCE = Provenance(
    at=100.0,
    user="ann",
    is_job=True,
    code=CodeVersion(commit="c" * 40, branch="faster", remote="", modified=True),
    context=(("team", "speed"),),
    data=DataProfile(
        name="a.txt",
        digest="0" * 16,
        files=("/data/a.txt",),
        tokenizer="",
        samples=3,
        tokens=40,
        histogram=(LengthBin(shortest=8, longest=16, samples=3),),
    ),
)


def test_each_driver_adds_what_differs_from_the_one_before(spec: SweepSpec) -> None:
    other = replace(PROVENANCE, at=300.0, code=None)
    for moment in (PROVENANCE, replace(PROVENANCE, at=200.0), other):
        study = Study(spec, "kept", make_space(spec))
        kept = study.keep_provenance(moment)

    assert kept == (PROVENANCE, other)
    assert load_provenances(spec, "kept") == kept
