"""`plimsoll sync`: trials that MLflow missed, added from the study."""

from __future__ import annotations

from orchestrator.cli.console import print_line
from orchestrator.cli.options import Json, StudyName, named_study
from orchestrator.cli.result import Result
from search_spaces.errors import UserError
from search_spaces.facts import ModelFacts
from search_spaces.spec.schema import SweepSpec


def sync(study: StudyName = None, as_json: Json = False) -> Result:
    """Add to MLflow any trials it missed."""
    named = named_study(study)
    spec, name = named.spec, named.name
    if not spec.tracking.enabled:
        raise UserError("tracking.enabled is false: this sweep is not tracked in MLflow")

    from orchestrator.study.locks import exclusive_driver
    from orchestrator.study.reader import (
        load_end,
        load_provenances,
        load_records,
        load_validations,
        stored_state,
    )
    from orchestrator.tracking.mlflow_callback import add_missing_runs
    from orchestrator.tracking.mlflow_reachability import check_tracking
    from orchestrator.tracking.mlflow_store import store_uri
    from search_spaces.spec.redaction import without_password

    model = _model(spec)
    records, validations = load_records(spec, name), load_validations(spec, name)
    state = stored_state(spec, name, records, validations, load_end(spec, name))
    with exclusive_driver(spec, name):  # a running driver logs its own trials
        check_tracking(spec)
        added = add_missing_runs(state, model, load_provenances(spec, name))
    store = without_password(store_uri(spec))
    if not as_json:
        print_line(
            f"{store} has all {len(records)} trials and {len(validations)} validations of {name};"
            f" added now: {added}."
        )
    content = {
        "study": name,
        "store": store,
        "trials": len(records),
        "validations": len(validations),
        "added": added,
    }
    return Result(kind="sync", content=lambda: content)


def _model(spec: SweepSpec) -> ModelFacts | None:
    """The model that exports need; None if it cannot be read, which a study does not require."""
    from workers.models.facts import model_facts

    try:
        return model_facts(spec.model, spec.train)
    except UserError as error:
        print_line(f"Exports are left out: the model cannot be read here: {error}")
        return None
