"""A port that passes everything on to a server, until it is told to get in the way."""

import contextlib
import select
import socket
import threading
from collections.abc import Iterator


class Proxy:
    """Connections to `port` are those to the server; what a test cuts, both ends see as cut."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._word, self._left = b"", 0
        self.port: int = self._listener.getsockname()[1]
        self.swallowed = 0
        self._away = False

    def swallow(self, word: bytes, which: int = 1) -> None:
        """Lets a message with a word through, by number from now on, and loses its answer."""
        self._word, self._left = word, which

    def leave(self) -> None:
        """Cuts all that is there, and everybody who calls, as a server does that is killed."""
        self._away = True
        with self._lock:
            for pair in self._pairs:
                _cut(*pair)

    def come_back(self) -> None:
        """Lets callers through again."""
        self._away = False

    def serve(self) -> None:
        """Passes connections on until the listener is closed."""
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._away:
                    _cut(client)
                    continue
                try:
                    server = socket.create_connection(("127.0.0.1", self._target))
                except OSError:  # the server is away
                    _cut(client)
                    continue
                with self._lock:
                    self._pairs.append((client, server))
                threading.Thread(target=self._pass_on, args=(client, server), daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for pair in self._pairs:
                _cut(*pair)

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        lost = False  # whether the server's next answer is
        with contextlib.suppress(OSError, ValueError):  # closed meanwhile
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    data = ready.recv(65536)
                    if not data:
                        return _cut(client, server)
                    if ready is server and lost:  # what the message asked for is done
                        self.swallowed += 1
                        return _cut(client, server)
                    (server if ready is client else client).sendall(data)
                    # the rest of the message may still be on its way: it is passed on as well
                    lost |= ready is client and self._is_swallowed(data)
        return _cut(client, server)

    def _is_swallowed(self, data: bytes) -> bool:
        if not self._left or self._word not in data:
            return False
        self._left -= 1
        return self._left == 0


def _cut(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()


@contextlib.contextmanager
def proxy_to(port: int) -> Iterator[Proxy]:
    """A proxy for the length of the block."""
    proxy = Proxy(port)
    thread = threading.Thread(target=proxy.serve, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join(5)
