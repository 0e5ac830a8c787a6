"""Fence around a database: no transaction writes unless the driver still holds the study."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Engine, event

_CONFIRMED = "plimsoll_confirmed"  # mark of a connection, for the length of a transaction
_WRITES = ("INSERT", "UPDATE", "DELETE")


def guard(engine: Engine, confirm: Callable[[Connection], None]) -> None:
    """Calls `confirm` in each transaction of an engine, ahead of its first write.

    It stands below everything that writes, Optuna's own code included.

    Args:
        engine: The engine.
        confirm: Raises if the transaction must not take effect. It has to write to the row that
            another driver changes when it takes the study: the database then lets one of the two
            wait until the other has committed.
    """

    def before(connection: Connection, _: Any, statement: str, *__: Any) -> None:
        if not statement.lstrip().upper().startswith(_WRITES) or connection.info.get(_CONFIRMED):
            return
        connection.info[_CONFIRMED] = True  # first, since `confirm` writes as well
        try:
            confirm(connection)
        except BaseException:
            forget(connection)
            raise

    def forget(connection: Connection) -> None:
        if not connection.invalidated:  # a lost one has no mark, and asking it raises another error
            connection.info.pop(_CONFIRMED, None)

    event.listen(engine, "before_cursor_execute", before)
    for end in ("begin", "commit", "rollback"):
        event.listen(engine, end, forget)
