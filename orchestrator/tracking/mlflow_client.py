"""MLflow's own client: what it can raise, in which words, and where it finds a sweep."""

from __future__ import annotations

import sys

import mlflow.artifacts
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException, RestException
from mlflow.tracking.registry import UnsupportedModelRegistryStoreURIException
from requests.exceptions import RequestException, RetryError

from orchestrator.study.storage import DATABASE_ERRORS
from orchestrator.tracking.mlflow_store import made_once
from orchestrator.workspace import with_driver
from search_spaces.errors import MissingExtraError
from search_spaces.spec.redaction import without_secrets

NoSuchStore = UnsupportedModelRegistryStoreURIException  # of addresses that nothing serves

SWEEP_TAG, STUDY_TAG = "plimsoll.sweep", "plimsoll.study"

# Errors of the libraries by which MLflow reaches buckets, which come through it as they are
_BUCKET_ERRORS = (
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("boto3.exceptions", "Boto3Error"),
    ("google.api_core.exceptions", "GoogleAPIError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("azure.core.exceptions", "AzureError"),
)
_LONGEST = 300  # characters of an error that are shown
_ADVICE = {
    401: "it takes other credentials: MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD,"
    " MLFLOW_TRACKING_TOKEN, or those of the plug-in that MLFLOW_TRACKING_AUTH names",
    403: "it wants other credentials, or to be started with --allowed-hosts for this name",
    404: "tracking.uri must be the address of an MLflow server",
}


def tracking_errors() -> tuple[type[Exception], ...]:
    """The errors of a store or a server that cannot be used; those of `requests` are OSErrors.

    A function, since only libraries that are loaded by now can have raised theirs.
    """
    classes = (getattr(sys.modules.get(module), name, None) for module, name in _BUCKET_ERRORS)
    loaded = tuple(one for one in classes if one is not None)
    return (MlflowException, MissingExtraError, *DATABASE_ERRORS, OSError, ImportError, *loaded)


def open_client(uri: str) -> MlflowClient:
    """A client of a store, whose tables are made if it is an empty database."""
    opened = with_driver(uri)
    return made_once(opened, lambda: MlflowClient(tracking_uri=opened))


def probe_store(uri: str) -> str | None:
    """Reads an experiment, as a sweep does.

    Returns:
        Where that experiment keeps its artifacts; None if none can be seen.

    Raises:
        Exception: One of `tracking_errors`.
    """
    found = MlflowClient(tracking_uri=uri).search_experiments(max_results=1)
    return str(found[0].artifact_location) if found else None


def probe_artifacts(location: str, uri: str) -> None:
    """Lists artifacts, with the credentials with which a sweep writes them.

    Raises:
        Exception: One of `tracking_errors`.
    """
    mlflow.artifacts.list_artifacts(artifact_uri=location, tracking_uri=uri)


def refusal(error: Exception, uri: str) -> str:
    """The predicate of a sentence on an error of a probe: what did not work, and what would."""
    cause = _request_error(error)
    if isinstance(cause, RetryError):
        return f"answered with errors ({in_short(_root(cause), uri)}): see its log"
    if cause is not None:
        return f"does not answer: {in_short(_root(cause), uri)}"
    if isinstance(error, ImportError):
        return f"needs a package that is not installed: {in_short(error, uri)}"
    told = in_short(error, uri).partition("Response body")[0].strip()
    if not isinstance(error, MlflowException):
        return f"cannot be used: {told}"
    status = error.get_http_status_code()
    if status in _ADVICE:
        return f"answered {status}: {_ADVICE[status]}"
    if uri.startswith("http") and not isinstance(error, RestException):
        return f"answered as no MLflow server does ({told}): {_ADVICE[404]}"
    return f"cannot be used: {told}"


def in_short(error: BaseException, uri: str) -> str:
    """An error on one line, without what is secret in the address."""
    told = " ".join(str(error).split())[:_LONGEST] or type(error).__name__
    return without_secrets(told, uri)


def find_sweep(client: MlflowClient, experiment_id: str, study: str) -> Run | None:
    """The run of a study's sweep, of several the latest; None if there is none."""
    found = client.search_runs(
        [experiment_id],
        filter_string=f"tags.`{SWEEP_TAG}` = 'true' and {of_study(study)}",
        max_results=1,
        order_by=["attributes.start_time DESC"],
    )
    return next(iter(found), None)


def of_study(study: str) -> str:
    """The filter of a study's runs."""
    quote = '"' if "'" in study else "'"
    return f"tags.`{STUDY_TAG}` = {quote}{study}{quote}"


def _request_error(error: BaseException) -> RequestException | None:
    """The error of `requests` that MLflow wrapped, if it did."""
    inner = error if isinstance(error, RequestException) else error.__cause__ or error.__context__
    return inner if isinstance(inner, RequestException) else None


def _root(error: BaseException) -> BaseException:
    """The innermost reason of an error of `requests`: that of the socket or of TLS."""
    while isinstance(inner := _inner(error), BaseException):
        error = inner
    return error


def _inner(error: BaseException) -> object:
    first = error.args[0] if error.args else None
    return getattr(error, "reason", None) or error.__cause__ or first
