"""Guards for running users' own code: the import path, and errors turned into one kind."""

import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from search_spaces.errors import ModelError, UserError
from search_spaces.specification.schema import SweepSpec


class UserCodeError(ModelError):
    """A user's own code raised any exception."""


def enter_folder(folder: str, spec: SweepSpec) -> None:
    """Changes to the driver's folder, so that relative paths mean the same.

    The folder may not exist on another node; there a job's working directory is set already. Code
    that the specification names may import more from it later, but nothing that is installed.
    """
    if Path(folder).is_dir():
        os.chdir(folder)
    if ":" in f"{spec.model.name}{spec.train.optimizer}":
        sys.path.append(str(Path.cwd()))


@contextlib.contextmanager
def importable_from_cwd() -> Iterator[None]:
    """Makes modules in the current directory importable, as under `python -m`."""
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(folder)


@contextlib.contextmanager
def user_code_errors(failing: str) -> Iterator[None]:
    """Runs a user's code, which may raise anything and may try to end the process.

    Args:
        failing: First part of the error's message; the cause follows.

    Raises:
        UserCodeError: In place of the code's own exception, with the line that raised it.
    """

    def failed(error: BaseException) -> UserCodeError:
        return UserCodeError(f"{failing}: {error_summary(error)}")

    with errors_as(failed):
        yield


@contextlib.contextmanager
def errors_as(
    make_error: Callable[[BaseException], Exception], *, passing: type[Exception] = UserError
) -> Iterator[None]:
    """Runs code that calls the user's, and turns all of its exceptions into one kind.

    Args:
        make_error: Makes the error from an exception, which becomes its cause.
        passing: Passes through unchanged, as do `UserError` and Ctrl-C.
    """
    try:
        yield
    except (KeyboardInterrupt, UserError, passing):
        raise
    except BaseException as error:
        raise make_error(error) from error


def error_text(error: BaseException) -> str:
    """Returns the text of an error, empty if the error's own code fails to make it."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an error's own code may raise anything
        return ""


def error_summary(error: BaseException) -> str:
    """Returns the kind of an error, its text, and the line of the user's code that raised it."""
    text = " ".join(error_text(error).split())
    if isinstance(error, ImportError | SyntaxError):  # their text names the place
        return text
    kind = type(error).__name__
    return (f"{kind}: {text[:300]}" if text else kind) + error_place(error)


def error_place(error: BaseException) -> str:
    """Returns file and line of the last code of the user's that an error went through."""
    frames = traceback.extract_tb(error.__traceback__)
    others = ("/torch/", str(Path(__file__).parents[1]))
    own = (one for one in reversed(frames) if not any(other in one.filename for other in others))
    last = next(own, frames[-1])
    return f" ({Path(last.filename).name}, line {last.lineno})"
