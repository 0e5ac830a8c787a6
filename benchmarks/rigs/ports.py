"""Ports for servers of one's own."""

from __future__ import annotations

import socket

_given: set[int] = set()  # by this process


def free_port() -> int:
    """Returns a port that nobody listens on now, and another one at each call.

    The kernel soon offers a port again that was bound and let go.
    """
    while True:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port: int = listener.getsockname()[1]
        if port not in _given:
            _given.add(port)
            return port
