"""The parameter server: a thread for each connection, one shard of the model, and no code of the user.

A connection is let in by the handshake alone. Before that it may send a few kilobytes and has ten seconds; at most
MOST_STRANGERS such connections are open at once. After that a desk answers its requests (desks.py).
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from pathlib import Path

import torch

from oarlock.train.servers.process import desks, service
from oarlock.train.servers.wire import frames, handshake, transport

GREETING_S = 10.0
MOST_STRANGERS = 64
_AGAIN_S = 1.0

Kind = frames.Kind


class Server:
    """The server at `address`, for the tasks that know `token`. A successor finds its checkpoint in `snapshot`, and its
    newest state in `kept`.
    """

    def __init__(
        self,
        address: tuple[str, int],
        token: str,
        *,
        device: torch.device | str = "cpu",
        snapshot: Path | None = None,
        kept: Path | None = None,
    ) -> None:
        self._token = token
        self.service = service.Service(device, snapshot, kept)
        self._lock = self.service.lock
        self._closed = threading.Condition(self._lock)  # a connection was
        self._connections: set[transport.Tcp] = set()
        self._strangers = threading.BoundedSemaphore(MOST_STRANGERS)
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._listener = socket.create_server(address, family=family, backlog=128)
        self.port: int = self._listener.getsockname()[1]

    def serve(self) -> None:
        """Let workers in until `close`."""
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError as cause:
                if self.service.closing:
                    return
                # A connection that ended before it was accepted, or too many open files.
                sys.stderr.write(f"oarlock.train: a connection was not accepted ({cause})\n")
                time.sleep(_AGAIN_S)
                continue
            if not self._strangers.acquire(blocking=False):
                sock.close()
                continue
            threading.Thread(target=self._receive, args=(sock,), daemon=True).start()

    def close(self) -> None:
        """Stop listening and break all connections."""
        self.service.close()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.close()
        self.service.lose_all()

    def await_end(self, seconds: float) -> None:
        """Wait until every connection has ended, at most so long."""
        with self._lock:
            self._closed.wait_for(lambda: not self._connections, timeout=seconds)

    def _receive(self, sock: socket.socket) -> None:
        """Serve one connection to its end."""
        connection = transport.Tcp(sock)
        with self._lock:
            self._connections.add(connection)
            closing = self.service.closing
        try:
            place = None if closing else self._greet(connection)
            if place is not None:
                with contextlib.suppress(OSError):
                    desks.Desk(self.service, connection, place).serve()
        finally:
            with self._lock:
                self._connections.discard(connection)
                self._closed.notify_all()
            connection.close()

    def _greet(self, connection: transport.Tcp) -> handshake.Place | None:
        try:
            connection.limit(GREETING_S)
            place, proof = handshake.receive(connection, self._token)
            joins = self.service.come(place, connection)
            try:
                connection.send(Kind.WELCOME, {"proof": proof, "joins": joins})
            except OSError:
                self.service.lost(place, connection)
                raise
            connection.limit(None)
            return place
        except frames.Refused as why:
            with contextlib.suppress(OSError):
                connection.send(Kind.ERROR, frames.reason(why))
            return None
        except OSError:
            return None
        finally:
            self._strangers.release()
