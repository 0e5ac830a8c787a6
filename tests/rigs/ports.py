"""Ports for servers of one's own."""

import random
import socket

# Below those that the kernel lends to outgoing connections (from 32768 on), above those of Ray's
# workers (up to 19999): a server that was stopped finds its port free when it starts again
_PORTS = range(20_000, 32_000)
_given: set[int] = set()  # by this process


def free_port() -> int:
    """Returns a port that nobody listens on now, and another one at each call."""
    draw = random.SystemRandom()  # tests seed the others, in each process alike
    while True:
        port = draw.choice(_PORTS)
        if port in _given:
            continue
        with socket.socket() as listener:
            try:
                listener.bind(("", port))
            except OSError:
                continue
        _given.add(port)
        return port
