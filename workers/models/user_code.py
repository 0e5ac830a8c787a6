"""A user's own modules: where they are found, and what becomes of what their code raises."""

from __future__ import annotations

import contextlib
import importlib
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from search_spaces.errors import ModelError, UserError


class UsersCodeError(ModelError):
    """A user's own code raised something, whatever it was."""


@contextlib.contextmanager
def importable_from_here() -> Iterator[None]:
    """Modules in the current directory can be imported, as under `python -m`."""
    here = str(Path.cwd())
    if here in sys.path:
        yield
        return
    sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(here)


@contextlib.contextmanager
def users_code(failing: str) -> Iterator[None]:
    """Runs code of the user's, which may raise anything, and may try to end the process.

    Args:
        failing: Begins the sentence about what it raised.

    Raises:
        UsersCodeError: In place of what it raised, with the line that did.
    """
    try:
        yield
    except UserError:
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise UsersCodeError(f"{failing}: {_told(error)}") from error


@contextlib.contextmanager
def any_fault_as(
    make_error: Callable[[BaseException], Exception], *, passing: type[Exception] = UserError
) -> Iterator[None]:
    """Runs code that calls the user's, and turns whatever that raises into one error.

    Args:
        make_error: Makes the error from what was raised, which becomes its cause.
        passing: Passes through as it is, and so do errors of the user and Ctrl-C.
    """
    try:
        yield
    except (KeyboardInterrupt, UserError, passing):
        raise
    except BaseException as error:
        raise make_error(error) from error


def text_of(error: BaseException) -> str:
    """Text of an error; nothing if its own code fails to give it."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an error's own code may raise anything
        return ""


def _told(error: BaseException) -> str:
    text = " ".join(text_of(error).split())
    if isinstance(error, ImportError | SyntaxError):  # which say where
        return text
    kind = type(error).__name__
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f" ({Path(last.filename).name}, line {last.lineno})"
    return (f"{kind}: {text[:300]}" if text else kind) + where
