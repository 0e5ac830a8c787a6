"""Bound for a whole call to a server: the timeouts of HTTP libraries are those of single reads."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from multiprocessing import TimeoutError as NotInTime
from multiprocessing.pool import ThreadPool
from typing import Any, TypeVar, final

from requests.exceptions import ReadTimeout

Answer = TypeVar("Answer")

READ_TIMEOUT = "MLFLOW_HTTP_REQUEST_TIMEOUT"
_READ_SECONDS = 20.0  # if the variable is not set
_READS = 5.0  # a call may take so many times the longest wait for a byte


def call_in_time(act: Callable[[], Answer]) -> Answer:
    """Returns the result of a call in a thread of its own, which is left behind if it is late.

    Raises:
        ReadTimeout: If it takes more than five times `MLFLOW_HTTP_REQUEST_TIMEOUT`.
    """
    seconds = _READS * float(os.environ.get(READ_TIMEOUT, _READ_SECONDS))
    pool = ThreadPool(1)
    try:
        return pool.apply_async(act).get(seconds)
    except NotInTime:
        raise ReadTimeout(f"no complete answer within {seconds:.0f} s") from None
    finally:
        pool.close()  # the thread ends with its call


@final
class InTime:
    """An object whose methods are called in time."""

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        """Returns a method that raises `ReadTimeout` if it takes too long; else the attribute."""
        found = getattr(self._wrapped, name)
        if not callable(found):
            return found

        @wraps(found)
        def in_time(*arguments: Any, **options: Any) -> Any:
            return call_in_time(lambda: found(*arguments, **options))

        return in_time
