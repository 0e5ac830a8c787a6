"""Model facts and data, loaded once per process and reused by every trial."""

from search_spaces.errors import DataError
from search_spaces.facts import DataProfile, ModelFacts
from search_spaces.specification.schema import SweepSpec
from workers.data.dataset import load_dataset, profile
from workers.data.forms import data_files
from workers.models.facts import model_facts


def prepare(spec: SweepSpec) -> ModelFacts:
    """Describes the model and reads the data; both stay in memory for the next call.

    A worker calls it so that the data does not count towards a trial.

    Raises:
        ModelError: If the model cannot be found or configured.
        DataError: If the data cannot be read or turned into samples.
    """
    facts = model_facts(spec.model, spec.train, apart=False)
    check_data(spec, facts)
    return facts


def prepare_driver(spec: SweepSpec) -> tuple[ModelFacts, DataProfile | None]:
    """Describes the model without running a user's code here, and the data.

    A driver calls it to find faults before anything starts.

    Raises:
        ModelError: If the model cannot be found or configured, or the user does not trust it.
        DataError: As `prepare`.
    """
    tuple(data_files(spec.data))  # one that is missing is found before a long look at the model
    facts = model_facts(spec.model, spec.train)
    return facts, check_data(spec, facts)


def check_data(spec: SweepSpec, facts: ModelFacts) -> DataProfile | None:
    """Reads the data, and describes it; None if the model makes its own batches.

    Raises:
        DataError: If it cannot be read or turned into samples, or the task does not train on it.
    """
    if facts.vocab_size is None:
        made = f"task {facts.task} of {facts.name} trains on random" if facts.task else facts.name
        if spec.data.files or (facts.task and spec.data.lengths):
            raise DataError(
                f"data is text, and {made} {'' if facts.task else 'makes its own '}batches: remove"
                " data, or read it in a function as the model (docs/model-and-data.md, Your model)"
            )
        return None
    return profile(load_dataset(spec.data, spec.train, facts.vocab_size), spec.data)
