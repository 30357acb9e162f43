"""A command inside a task, over a websocket: stdin goes, stdout and stderr and the exit code come.

The first message is the command. Then binary frames carry bytes, the first byte naming the stream (0 stdin; 1 stdout,
2 stderr), and text frames are JSON: `{"resize": [rows, columns]}` and `{"eof": true}` go, `{"exit": code}` comes.
`frames` is shared by the thread's session and the event loop's.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from oarlock.client import failures, places, requests, sender
from oarlock.spec import errors

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection as AsyncConnection
    from websockets.sync.client import ClientConnection

STDIN, STDOUT, STDERR = b"\x00", b"\x01", b"\x02"
OPEN_TIMEOUT_S = 20.0
CHUNK_BYTES = 1 << 15
MAX_FRAME_BYTES = 1 << 22


class Output(msgspec.Struct, frozen=True):
    stream: str  # `stdout` or `stderr`
    data: bytes


class Exited(msgspec.Struct, frozen=True):
    code: int


class Result(msgspec.Struct, frozen=True):
    code: int
    stdout: bytes
    stderr: bytes


class _Ending(msgspec.Struct, frozen=True, kw_only=True):
    exit: int | None = None
    error: failures.ErrorBody | None = None


def opening(command: Sequence[str]) -> str:
    if not command:
        raise errors.InvalidInput("there is no command", hint="Say which: oarlock exec JOB -- ls")
    return msgspec.json.encode(list(command)).decode()


def resize(rows: int, columns: int) -> str:
    return msgspec.json.encode({"resize": [rows, columns]}).decode()


END_OF_INPUT = '{"eof": true}'


def parsed(frame: bytes | str) -> Output | Exited | None:
    """A frame from the server; None for one that a newer server may send."""
    if isinstance(frame, str):
        told = failures.decoded(frame.encode(), _Ending)
        if told.error is not None:
            raise failures.from_response(500, msgspec.json.encode({"error": told.error}))
        return Exited(told.exit) if told.exit is not None else None
    names = {STDOUT: "stdout", STDERR: "stderr"}
    return Output(names[frame[:1]], frame[1:]) if frame[:1] in names else None


def _websocket_url(place: places.Place, target: str) -> str:
    return "ws" + place.url.removeprefix("http") + target


def _options(place: places.Place) -> dict[str, Any]:
    nothing = requests.server()
    options: dict[str, Any] = {
        "additional_headers": {k: v for k, v in sender.headers_of(place, nothing).items() if k == "Authorization"},
        "open_timeout": OPEN_TIMEOUT_S,
        "max_size": MAX_FRAME_BYTES,
    }
    trust = sender.trust(place)
    if trust not in (True, False):
        options["ssl"] = trust
    if place.loopback:
        options["proxy"] = None
    return options


def _refusal(place: places.Place, error: Exception) -> errors.OarlockError:
    """Why no websocket came about, or why it closed before the command's end."""
    response = getattr(error, "response", None)
    if response is not None:
        return failures.from_response(response.status_code, bytes(response.body or b""))
    received = getattr(error, "rcvd", None)
    if received is not None and received.reason:
        try:
            return failures.from_response(500, received.reason.encode())
        except ValueError:  # pragma: no cover - from_response takes any bytes
            pass
    if isinstance(error, ConnectionRefusedError):
        return failures.unsent(place, "", error)
    return failures.lost(place, error)


class Session:
    """One command, on a thread: `with Session(...) as session`; another thread may send meanwhile."""

    def __init__(self, place: places.Place, target: str, command: Sequence[str]) -> None:
        from websockets import exceptions

        self._place = place
        self._target = target
        self._first = opening(command)
        self._broken = (exceptions.WebSocketException, OSError, EOFError)
        self._stack = contextlib.ExitStack()
        self._socket: ClientConnection | None = None

    def __enter__(self) -> Session:
        from websockets.sync import client

        try:
            self._socket = self._stack.enter_context(
                client.connect(_websocket_url(self._place, self._target), **_options(self._place))
            )
            self._socket.send(self._first)
        except self._broken as error:
            self._stack.close()
            raise _refusal(self._place, error) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def output(self) -> Iterator[Output | Exited]:
        """Until the command has ended. Raises Lost where the connection ends first."""
        try:
            while True:
                item = parsed(self._connection.recv())
                if item is not None:
                    yield item
                if isinstance(item, Exited):
                    return
        except self._broken as error:
            raise _refusal(self._place, error) from error

    def send(self, chunk: bytes) -> None:
        self._send(STDIN + chunk)

    def close_stdin(self) -> None:
        self._send(END_OF_INPUT)

    def resize(self, rows: int, columns: int) -> None:
        self._send(resize(rows, columns))

    def finish(self, stdin: bytes = b"") -> Result:
        for start in range(0, len(stdin), CHUNK_BYTES):
            self.send(stdin[start : start + CHUNK_BYTES])
        self.close_stdin()
        return _gathered(list(self.output()))

    @property
    def _connection(self) -> ClientConnection:
        if self._socket is None:
            raise errors.Conflict("the session is not open", hint="Use it in `with`.")
        return self._socket

    def _send(self, message: bytes | str) -> None:
        try:
            self._connection.send(message)
        except self._broken:
            return  # the reader tells what happened: the command has ended, or the server is lost


def _gathered(items: Sequence[Output | Exited]) -> Result:
    return Result(
        code=next(item.code for item in items if isinstance(item, Exited)),
        stdout=b"".join(item.data for item in items if isinstance(item, Output) and item.stream == "stdout"),
        stderr=b"".join(item.data for item in items if isinstance(item, Output) and item.stream == "stderr"),
    )


class AsyncSession:
    """One command, on an event loop: `async with AsyncSession(...) as session`."""

    def __init__(self, place: places.Place, target: str, command: Sequence[str]) -> None:
        from websockets import exceptions

        self._place = place
        self._target = target
        self._first = opening(command)
        self._broken = (exceptions.WebSocketException, OSError, EOFError)
        self._socket: AsyncConnection | None = None

    async def __aenter__(self) -> AsyncSession:
        from websockets.asyncio import client

        try:
            self._socket = await client.connect(_websocket_url(self._place, self._target), **_options(self._place))
            await self._socket.send(self._first)
        except self._broken as error:
            raise _refusal(self._place, error) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()

    async def output(self) -> AsyncIterator[Output | Exited]:
        try:
            while True:
                item = parsed(await self._connection.recv())
                if item is not None:
                    yield item
                if isinstance(item, Exited):
                    return
        except self._broken as error:
            raise _refusal(self._place, error) from error

    async def send(self, chunk: bytes) -> None:
        await self._send(STDIN + chunk)

    async def close_stdin(self) -> None:
        await self._send(END_OF_INPUT)

    async def resize(self, rows: int, columns: int) -> None:
        await self._send(resize(rows, columns))

    async def finish(self, stdin: bytes = b"") -> Result:
        for start in range(0, len(stdin), CHUNK_BYTES):
            await self.send(stdin[start : start + CHUNK_BYTES])
        await self.close_stdin()
        return _gathered([item async for item in self.output()])

    @property
    def _connection(self) -> AsyncConnection:
        if self._socket is None:
            raise errors.Conflict("the session is not open", hint="Use it in `async with`.")
        return self._socket

    async def _send(self, message: bytes | str) -> None:
        try:
            await self._connection.send(message)
        except self._broken:
            return
