"""A worker's connection to one parameter server: requests and their answers."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from oarlock.train import errors
from oarlock.train.servers import addresses, frames, handshake, transport

WAIT_S = 600.0
"""The servers start together with the workers, and one that died is replaced: for so long a worker waits for it."""
_AGAIN_S = 0.05
_CONNECT_S = 10.0


class Link:
    """The connection to server `number`. Requests are answered in their order."""

    def __init__(self, servers: addresses.Addresses, number: int, place: handshake.Place) -> None:
        self.number = number
        self._servers, self._place = servers, place
        self.joins = False  # whether the others were in training already when this worker came
        self._connection = self._connect()

    def start(self, kind: frames.Kind, fields: dict[str, Any], body: Sequence[memoryview] = ()) -> None:
        """Send a request. ServerError if the connection breaks."""
        try:
            self._connection.send(kind, fields, body)
        except OSError as cause:
            # The server has closed the connection: mostly it has said why.
            self._explain(cause)

    def finish(self, into: Callable[[frames.Head], Sequence[memoryview]] | None = None) -> dict[str, Any]:
        """Receive the answer of the oldest request, its body into the memory that `into` gives. Return its fields."""
        try:
            head = self._connection.head()
            if head.kind is frames.Kind.ERROR:
                raise errors.ServerError(f"parameter server {self.number}: {head.fields.get('message')}")
            body = into(head) if into is not None else ()
            if sum(each.nbytes for each in body) != head.body_bytes:
                raise errors.ServerError(
                    f"parameter server {self.number} sent {head.body_bytes} bytes where another number was expected"
                )
            self._connection.body(body)
            return head.fields
        except (OSError, frames.Refused) as cause:
            raise self._broken(cause) from cause

    def ask(self, kind: frames.Kind, fields: dict[str, Any], body: Sequence[memoryview] = ()) -> dict[str, Any]:
        """Send a request and receive its answer, which has no body."""
        self.start(kind, fields, body)
        return self.finish()

    def close(self) -> None:
        self._connection.close()

    def _explain(self, cause: OSError) -> None:
        try:
            head = self._connection.head()
        except (OSError, frames.Refused):
            raise self._broken(cause) from cause
        raise errors.ServerError(f"parameter server {self.number}: {head.fields.get('message')}") from cause

    def _broken(self, cause: Exception) -> errors.ServerError:
        return errors.ServerError(f"the connection to parameter server {self.number} broke: {cause}")

    def _connect(self) -> transport.Tcp:
        deadline = time.monotonic() + WAIT_S
        while True:
            host, port = self._servers.newest(self.number)
            try:
                connection = transport.Tcp(socket.create_connection((host, port), timeout=_CONNECT_S))
            except OSError as cause:
                if time.monotonic() > deadline:
                    raise errors.ServerError(
                        f"parameter server {self.number} at {host}:{port} cannot be reached ({cause}). Look at the "
                        "log of the task, with `oarlock logs JOB --role ps`."
                    ) from cause
                time.sleep(_AGAIN_S)
                continue
            try:
                connection.limit(_CONNECT_S)
                self.joins = handshake.greet(connection, self._servers.token, self._place)
                connection.limit(None)
                return connection
            except frames.Refused as why:
                connection.close()
                raise errors.ServerError(f"parameter server {self.number} at {host}:{port} refuses: {why}") from None
            except OSError:
                connection.close()
                time.sleep(_AGAIN_S)
