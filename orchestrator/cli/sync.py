"""`plimsoll sync`: trials that MLflow missed, added from the study."""

from orchestrator.cli.console import print_error, print_line
from orchestrator.cli.options import Json, StudyName, named_study
from orchestrator.cli.result import Result
from search_spaces.errors import UserError


def sync(study: StudyName = None, as_json: Json = False) -> Result:
    """Add to MLflow any trials it missed."""
    named = named_study(study)
    spec, name = named.spec, named.name
    if not spec.tracking.enabled:
        raise UserError("tracking.enabled is false: this sweep is not tracked in MLflow")

    from orchestrator.study.locks import exclusive_driver
    from orchestrator.study.reader import load_provenances, load_state
    from orchestrator.tracking.mlflow_callback import add_missing_runs
    from orchestrator.tracking.mlflow_reachability import check_tracking
    from orchestrator.tracking.mlflow_store import store_uri
    from search_spaces.safety.redaction import without_password

    state = load_state(spec, name)
    with exclusive_driver(spec, name, print_error):  # a running driver logs its own trials
        check_tracking(spec)
        added = add_missing_runs(state, load_provenances(spec, name))
    store = without_password(store_uri(spec))
    if not as_json:
        print_line(
            f"{store} has all {len(state.records)} trials and {len(state.validations)} validations"
            f" of {name}; added now: {added}."
        )
    content = {
        "study": name,
        "store": store,
        "trials": len(state.records),
        "validations": len(state.validations),
        "added": added,
    }
    return Result(kind="sync", content=lambda: content)
