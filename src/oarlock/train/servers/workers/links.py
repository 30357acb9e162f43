"""A worker's connection to one parameter server: requests and their answers."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from oarlock.train import errors, patience
from oarlock.train.servers import addresses
from oarlock.train.servers.wire import bodies, frames, handshake, transport
from oarlock.train.sharing import segments

WATCH_S = 0.2
"""While it waits for one answer, a worker looks so often after its other connections."""
WAIT_S = 600.0
"""The servers start together with the workers, and one that died is replaced: for so long a worker waits for it."""
_AGAIN_S = 0.05
_CONNECT_S = 10.0
_GREETING_S = 60.0
"""A server may be busy for seconds, with the import of its optimizer. Once it has given a place to a worker it counts
the end of that connection as the worker's death, so that a worker must not give up early."""


class Lost(errors.ServerError):
    """The connection broke, or the server died. A new connection may help."""


class Link:
    """The connection to server `number`. Requests are answered in their order."""

    def __init__(
        self, servers: addresses.Addresses, number: int, place: handshake.Place, *, patient: bool = True
    ) -> None:
        self.number = number
        self._patient = patient  # waits for a server that is not there
        self._servers, self._place = servers, place
        self.replaced = servers.replaced
        self._socket, self.joins = self._connect()
        self._connection: transport.Connection = self._socket
        self._weights: segments.Opened | None = None  # the server's memory of weights; it is mapped when it is used
        self._mapped: torch.Tensor | None = None

    def start(self, kind: frames.Kind, fields: dict[str, Any], body: Sequence[memoryview] = ()) -> None:
        """Send a request. Lost if the connection breaks."""
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
                raise self._refusal(head)
            body = into(head) if into is not None else ()
            if sum(each.nbytes for each in body) != head.body_bytes:
                raise errors.ServerError(
                    f"parameter server {self.number} sent {head.body_bytes} bytes where another number was expected"
                )
            self._connection.body(body)
            return head.fields
        except (OSError, frames.Refused) as cause:
            raise self._broken(cause) from cause

    def waits(self, within_s: float) -> bool:
        """Return whether an answer arrives, or the connection breaks, within this time."""
        return self._connection.waits(within_s)

    def is_broken(self) -> bool:
        """Return whether the server has ended the connection."""
        return self._connection.is_broken()

    def ask(self, kind: frames.Kind, fields: dict[str, Any], body: Sequence[memoryview] = ()) -> dict[str, Any]:
        """Send a request and receive its answer, which has no body."""
        self.start(kind, fields, body)
        return self.finish()

    def open(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Take part in the training from now on. Bodies go by shared memory from now on, where the server has it."""
        self._connection = self._socket  # the memory of an earlier opening is over
        self._forget()
        told = self.ask(frames.Kind.OPEN, {**fields, "sees": segments.place()})
        offered = told.get("segment")
        if offered is not None:
            self._share(offered, told.get("weights"))
        return told

    def _share(self, offered: dict[str, Any], weights: dict[str, Any] | None) -> None:
        try:
            opened = segments.Opened(str(offered.get("name")), str(offered.get("secret")))
        except OSError:
            self.ask(frames.Kind.SHARE, {"sees": False})
            return
        try:
            if weights is not None:
                with contextlib.suppress(OSError):
                    self._weights = segments.Opened(str(weights.get("name")), str(weights.get("secret")))
            size = self.ask(frames.Kind.SHARE, {"sees": True, "weights": self._weights is not None})["bytes"]
            if size:
                self._connection = bodies.Shared(self._socket, opened.map(int(size)))
        except OSError as cause:
            raise self._broken(cause) from cause  # the server has reserved it, and writes there
        finally:
            opened.close()

    def weights(self, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the weights in the server's memory: tensors like these. Lost where they are not there."""
        try:
            if self._mapped is None:
                if self._weights is None:
                    raise OSError("the server shows weights, and this worker does not see them")
                size = sum(each.numel() * each.element_size() for each in like)
                self._mapped = torch.frombuffer(self._weights.map(size), dtype=torch.uint8)
            return bodies.tensors(self._mapped, like)
        except (OSError, ValueError) as cause:
            raise self._broken(cause) from cause

    def _forget(self) -> None:
        if self._weights is not None:
            self._weights.close()
        self._weights = self._mapped = None

    @property
    def is_whole(self) -> bool:
        """Whether the body of the answer cannot break off any more."""
        return self._connection.is_whole

    def shares(self, body_bytes: int) -> bool:
        """Return whether a body of this size goes by shared memory."""
        return self._connection.shares(body_bytes)

    def close(self) -> None:
        self._connection.close()
        self._forget()

    def _explain(self, cause: OSError) -> None:
        try:
            head = self._connection.head()
        except (OSError, frames.Refused):
            raise self._broken(cause) from cause
        raise self._refusal(head) from cause

    def reconnect(self) -> None:
        """Connect anew, to the server that takes the place of the lost one. Lost where there is none."""
        self.close()
        if not self.replaced:
            raise Lost(f"parameter server {self.number} is gone: Connection closed by peer")
        self._socket, _ = self._connect()
        self._connection = self._socket

    def _refusal(self, head: frames.Head) -> errors.TrainError:
        return self._error(frames.refusal(head.fields), f"parameter server {self.number}: ")

    def _error(self, why: frames.Refused, told: str) -> errors.TrainError:
        kind = errors.PeersLost if isinstance(why, frames.RoundOver) else errors.ServerError
        return kind(f"{told}{why}")

    def _broken(self, cause: Exception) -> Lost:
        return Lost(f"the connection to parameter server {self.number} broke: {cause}")

    def _connect(self) -> tuple[transport.Tcp, bool]:
        """Return the connection, and whether the others are in training already."""
        deadline = time.monotonic() + (WAIT_S if self._patient else 0.0)
        while True:
            host, port = self._servers.newest(self.number)
            try:
                return self._greet(host, port)
            except OSError as cause:
                if time.monotonic() > deadline:
                    raise errors.ServerError(
                        f"parameter server {self.number} at {host}:{port} cannot be reached ({cause}). Look at the "
                        "log of the task, with `oarlock logs JOB --role ps`."
                    ) from cause
                patience.keep_waiting()
                patience.check_round()
                time.sleep(_AGAIN_S)

    def _greet(self, host: str, port: int) -> tuple[transport.Tcp, bool]:
        connected = socket.create_connection((host, port), timeout=_CONNECT_S)
        connection = transport.Tcp(connected, lambda: self._servers.is_replaced(self.number, (host, port)))
        try:
            connection.limit(_GREETING_S)
            joins = handshake.greet(connection, self._servers.token, self._place)
            connection.limit(None)
        except frames.Refused as why:
            connection.close()
            raise self._error(why, f"parameter server {self.number} at {host}:{port} refuses: ") from None
        except OSError:
            connection.close()
            raise
        return connection, joins
