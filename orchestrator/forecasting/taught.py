"""A belief that another study has taught."""

from __future__ import annotations

from orchestrator.planning import learned_from_study, study_device
from orchestrator.studies import find_study
from orchestrator.study import load_records, storage_url
from search_spaces.forecast.belief import Belief
from search_spaces.spec.schema import SweepSpec


def taught_by(belief: Belief, named: str, *, tuned: SweepSpec, tuned_name: str) -> Belief:
    """The belief after the measured trials of a study, which may be of another model.

    Args:
        belief: What is believed before.
        named: The study, by its specification, folder, name or database.
        tuned: The specification of the study that forecasts are wanted for. If both are one,
            nothing is learned here: a sweep learns from its own records by itself.
        tuned_name: That study's name.

    Raises:
        UserError: If there is no such study, it ran on a device that nobody knows, or its model
            cannot be found or traced.
    """
    found = find_study(named, option="--records")
    spec, name = found.spec, found.name
    if (name, storage_url(spec, name)) == (tuned_name, storage_url(tuned, tuned_name)):
        return belief
    records = load_records(spec, name)
    return learned_from_study(belief, spec, records, study_device(spec, records))
