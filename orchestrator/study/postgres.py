"""PostgreSQL by way of psycopg, with an end to waiting for answers.

libpq has no such limit: `connect_timeout` ends with the connection, `tcp_user_timeout` asks whether
the server's kernel takes what is sent, and `statement_timeout` is kept by the server itself, which
may be the one that hangs.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from types import ModuleType
from typing import Any, TypeVar

import psycopg

ANSWER_SECONDS = 60.0  # for a statement or a commit; the longest of ours take some seconds

Value = TypeVar("Value")


class ImpatientConnection(psycopg.Connection[Any]):
    """A connection that is closed when an answer does not come.

    Raises:
        OperationalError: From whatever waits for the server, after `ANSWER_SECONDS`.
    """

    def wait(self, gen: Generator[Any, Any, Value], *options: Any, **more: Any) -> Value:
        """As psycopg's, which hears every 0.1 s that nothing has come."""
        late = _Late()
        try:
            return super().wait(_until(gen, late, ANSWER_SECONDS), *options, **more)
        finally:
            if late.told:  # the answer may come still, to another question
                self.pgconn.finish()


class _Late:
    told = False


def _until(
    gen: Generator[Any, Any, Value], late: _Late, seconds: float
) -> Generator[Any, Any, Value]:
    until = time.monotonic() + seconds
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > until:
                late.told = True
                raise psycopg.OperationalError(f"the server has not answered for {seconds:.0f} s")
            wanted = gen.send(ready)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


class _Module(ModuleType):
    """psycopg, but for how it connects; SQLAlchemy takes a module for its driver."""

    connect = staticmethod(ImpatientConnection.connect)

    def __getattr__(self, name: str) -> Any:
        return getattr(psycopg, name)


IMPATIENT = _Module("psycopg")
