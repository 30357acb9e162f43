# Made by `make sdk` from `asynchronous/session.py`: change that file, not this one.
"""A command inside a task, over a web socket (`oarlock.client.execution` has the frames)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from oarlock.client import execution, places
from oarlock.spec import errors

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection


class Session:
    """One command, or one connection (without a command).

    Enter it before its use; another thread or task may send while one reads.
    """

    def __init__(self, place: places.Place, target: str, command: Sequence[str] | None = None) -> None:
        from websockets import exceptions

        self._place = place
        self._target = target
        self._first = execution.opening(command) if command is not None else None
        self._broken = (exceptions.WebSocketException, OSError, EOFError)
        self._stack = contextlib.ExitStack()
        self._socket: ClientConnection | None = None

    def __enter__(self) -> Session:
        from websockets.sync import client

        try:
            url = execution.websocket_url(self._place, self._target)
            connecting = client.connect(url, **execution.options(self._place))
            self._socket = self._stack.enter_context(connecting)
            if self._first is not None:
                self._socket.send(self._first)
        except self._broken as error:
            self._stack.close()
            raise execution.refusal(self._place, error) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def close(self) -> None:
        """End the connection, also while another thread or task reads."""
        if self._socket is not None:
            self._socket.close()

    def output(self) -> Iterator[execution.Output | execution.Exited]:
        """Yield output until the command has ended. Raises Lost where the connection ends first."""
        try:
            while True:
                item = execution.parsed(self._connection.recv())
                if item is not None:
                    yield item
                if isinstance(item, execution.Exited):
                    return
        except self._broken as error:
            raise execution.refusal(self._place, error) from error

    def send(self, chunk: bytes) -> None:
        self._send(execution.STDIN + chunk)

    def close_stdin(self) -> None:
        self._send(execution.END_OF_INPUT)

    def resize(self, rows: int, columns: int) -> None:
        self._send(execution.resize(rows, columns))

    def finish(self, stdin: bytes = b"") -> execution.Result:
        """Send all of `stdin` and return the whole output, once the command has ended."""
        for start in range(0, len(stdin), execution.CHUNK_BYTES):
            self.send(stdin[start : start + execution.CHUNK_BYTES])
        self.close_stdin()
        return execution.gathered([item for item in self.output()])

    @property
    def _connection(self) -> ClientConnection:
        if self._socket is None:
            raise errors.Conflict("the session is not open", hint="Use it in `with` or `async with`.")
        return self._socket

    def _send(self, message: bytes | str) -> None:
        try:
            self._connection.send(message)
        except self._broken:
            return  # the reader raises the reason: the command has ended, or the server is lost
