"""PostgreSQL through psycopg, with a timeout for answers, and one for clients that stop.

libpq has none for answers. `connect_timeout` covers the connection only, `tcp_user_timeout` what
the server's kernel acknowledges, and `statement_timeout` is enforced by the server, which may be
what hangs.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from types import ModuleType
from typing import Any, TypeVar

import psycopg

ANSWER_SECONDS = 60.0  # for a statement or a commit; the longest take some seconds
# until the server ends a transaction that its client has left open: a process that is stopped in
# one would keep its locks, and with them everybody else from the study
IDLE_SECONDS = 10.0

Value = TypeVar("Value")


class TimeoutConnection(psycopg.Connection[Any]):
    """Connection that closes if an answer does not come in time.

    Raises:
        OperationalError: From any method that waits for the server, after `ANSWER_SECONDS`.
    """

    def wait(self, gen: Generator[Any, Any, Value], *options: Any, **more: Any) -> Value:
        """Waits like psycopg, which reports every 0.1 s that nothing has come."""
        timeout = _Timeout()
        try:
            return super().wait(_limited(gen, timeout, ANSWER_SECONDS), *options, **more)
        finally:
            if timeout.expired:  # a late answer would be taken for the next statement's
                self.pgconn.finish()


class _Timeout:
    expired = False


def _limited(
    gen: Generator[Any, Any, Value], timeout: _Timeout, seconds: float
) -> Generator[Any, Any, Value]:
    until = time.monotonic() + seconds
    try:
        readiness = next(gen)
        while True:
            ready = yield readiness
            if not ready and time.monotonic() > until:
                timeout.expired = True
                raise psycopg.OperationalError(f"the server has not answered for {seconds:.0f} s")
            readiness = gen.send(ready)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _connected(*arguments: Any, **options: Any) -> TimeoutConnection:
    connection = TimeoutConnection.connect(*arguments, **options)
    was = connection.autocommit
    connection.autocommit = True  # outside of any transaction, so that it stays
    connection.execute(f"SET idle_in_transaction_session_timeout = '{IDLE_SECONDS:.0f}s'")
    connection.autocommit = was
    return connection


class _Module(ModuleType):
    """Copy of psycopg with another `connect`: SQLAlchemy takes a module as its driver."""

    connect = staticmethod(_connected)

    def __getattr__(self, name: str) -> Any:
        return getattr(psycopg, name)


IMPATIENT = _Module("psycopg")
