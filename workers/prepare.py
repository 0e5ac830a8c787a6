"""What a trial needs and every later one needs again: the model's facts and the data."""

from __future__ import annotations

from search_spaces.facts import ModelFacts
from search_spaces.spec.schema import SweepSpec
from workers.data.dataset import load_dataset
from workers.models.load import describe


def prepare(spec: SweepSpec) -> ModelFacts:
    """Describes the model and reads the data; both stay in memory for the next call.

    The driver calls it to find faults before anything is started, a worker so that the data
    is no part of what a trial takes.

    Raises:
        ModelError: If the model cannot be found or configured.
        DataError: If the data cannot be read or turned into samples.
    """
    facts = describe(spec.model, spec.train)
    if facts.vocab_size is not None:
        load_dataset(spec.data, spec.train, facts.vocab_size)
    return facts
