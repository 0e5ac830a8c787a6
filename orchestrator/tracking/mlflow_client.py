"""MLflow's client: its errors and their messages, and the run of a sweep."""

import socket
import ssl
import sys

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException, RestException
from mlflow.tracking.registry import UnsupportedModelRegistryStoreURIException
from requests.exceptions import ConnectionError as LostConnection
from requests.exceptions import RequestException, RetryError, Timeout

from orchestrator.study.storage import DATABASE_ERRORS
from orchestrator.workspace import with_driver
from search_spaces.errors import MissingExtraError
from search_spaces.safety.files import packaged_table
from search_spaces.safety.redaction import without_secrets

NoSuchStore = UnsupportedModelRegistryStoreURIException  # raised for an unsupported scheme

SWEEP_TAG, STUDY_TAG = "plimsoll.sweep", "plimsoll.study"

_TABLE = packaged_table(__package__, "mlflow.yaml")
_MAX_CHARACTERS = 300  # of an error in a message


def tracking_errors() -> tuple[type[Exception], ...]:
    """Returns the errors of an unusable store or server; those of `requests` are OSErrors.

    It is a function because only libraries that are loaded by now can raise their errors.
    """
    classes = (
        getattr(sys.modules.get(module), name, None) for module, name in _TABLE["bucket_errors"]
    )
    loaded = tuple(error for error in classes if error is not None)
    return (MlflowException, MissingExtraError, *DATABASE_ERRORS, OSError, ImportError, *loaded)


def open_client(uri: str) -> MlflowClient:
    """Returns a client of a store; creates the tables if the store is an empty database."""
    return MlflowClient(tracking_uri=with_driver(uri))


def is_away(error: Exception) -> bool:
    """Returns True if the same probe may succeed later: no answer, or errors of the server's own.

    A certificate that nobody trusts stays so, and a host that nobody knows is taken for a typing
    error, as that of a study's storage is.
    """
    cause = _request_error(error) or error
    lasts = isinstance(_root_cause(cause), ssl.SSLError | socket.gaierror)
    return isinstance(cause, RetryError | LostConnection | Timeout | TimeoutError) and not lasts


def refusal(error: Exception, uri: str) -> str:
    """Returns the predicate of a sentence on an error of a probe, with its remedy."""
    cause = _request_error(error)
    if isinstance(cause, RetryError):
        return f"answered with errors ({short_message(_root_cause(cause), uri)}): see its log"
    if cause is not None:
        return f"does not answer: {short_message(_root_cause(cause), uri)}"
    if isinstance(error, ImportError):
        return f"needs a package that is not installed: {short_message(error, uri)}"
    message = short_message(error, uri).partition("Response body")[0].strip()
    if not isinstance(error, MlflowException):
        return f"cannot be used: {message}"
    status = error.get_http_status_code()
    if status in _TABLE["advice"]:
        return f"answered {status}: {_TABLE['advice'][status]}"
    if uri.startswith("http") and not isinstance(error, RestException):
        return f"is not an MLflow server ({message}): {_TABLE['advice'][404]}"
    return f"cannot be used: {message}"


def short_message(error: BaseException, uri: str) -> str:
    """Returns an error on one line, without the secrets of the address."""
    message = " ".join(str(error).split())[:_MAX_CHARACTERS] or type(error).__name__
    return without_secrets(message, uri)


def find_sweep(client: MlflowClient, experiment_id: str, study: str) -> Run | None:
    """Returns the latest run of a study's sweep; None if there is none."""
    runs = client.search_runs(
        [experiment_id],
        filter_string=f"tags.`{SWEEP_TAG}` = 'true' and {of_study(study)}",
        max_results=1,
        order_by=["attributes.start_time DESC"],
    )
    return next(iter(runs), None)


def of_study(study: str) -> str:
    """Returns a filter for the runs of a study."""
    quote = '"' if "'" in study else "'"
    return f"tags.`{STUDY_TAG}` = {quote}{study}{quote}"


def _request_error(error: BaseException) -> RequestException | None:
    # MLflow may wrap an error of `requests`
    inner = error if isinstance(error, RequestException) else error.__cause__ or error.__context__
    return inner if isinstance(inner, RequestException) else None


def _root_cause(error: BaseException) -> BaseException:
    # the innermost error is that of the socket or of TLS
    while isinstance(inner := _inner(error), BaseException):
        error = inner
    return error


def _inner(error: BaseException) -> object:
    first = error.args[0] if error.args else None
    return getattr(error, "reason", None) or error.__cause__ or first
