"""A command inside a task, over a websocket that carries stdin, stdout, stderr and the exit code.

The first message is the command. Then binary frames carry bytes, the first byte naming the stream (0 stdin; 1 stdout,
2 stderr), and text frames are JSON: `{"resize": [rows, columns]}` and `{"eof": true}` go, `{"exit": code}` comes.
Both clients share these frames; `session.py` of `asynchronous/` and `synchronous/` sends and receives them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from oarlock.client import connection, failures, places, requests
from oarlock.spec import bodies, errors

STDIN, STDOUT, STDERR = b"\x00", b"\x01", b"\x02"
OPEN_TIMEOUT_S = 20.0
CHUNK_BYTES = 1 << 15
MAX_FRAME_BYTES = 1 << 22


class Output(msgspec.Struct, frozen=True):
    """A piece of output."""

    stream: str  # `stdout` or `stderr`
    data: bytes


class Exited(msgspec.Struct, frozen=True):
    """The end of the command."""

    code: int


class Result(msgspec.Struct, frozen=True):
    """The exit code and the whole output of a command."""

    code: int
    stdout: bytes
    stderr: bytes


class _Ending(msgspec.Struct, frozen=True, kw_only=True):
    exit: int | None = None
    error: bodies.ErrorBody | None = None


def opening(command: Sequence[str]) -> str:
    """Return the first frame. Raises InvalidInput for an empty command."""
    if not command:
        raise errors.InvalidInput("there is no command", hint="Name one: oarlock exec JOB -- ls")
    return msgspec.json.encode(list(command)).decode()


def resize(rows: int, columns: int) -> str:
    """Return the frame for a new size of the terminal."""
    return msgspec.json.encode({"resize": [rows, columns]}).decode()


END_OF_INPUT = '{"eof": true}'


def parsed(frame: bytes | str) -> Output | Exited | None:
    """Return the content of a frame; None for an unknown one, which a newer server may send."""
    if isinstance(frame, str):
        told = failures.decoded(frame.encode(), _Ending)
        if told.error is not None:
            raise failures.raised(told.error)
        return Exited(told.exit) if told.exit is not None else None
    names = {STDOUT: "stdout", STDERR: "stderr"}
    return Output(names[frame[:1]], frame[1:]) if frame[:1] in names else None


def websocket_url(place: places.Place, target: str) -> str:
    return "ws" + place.url.removeprefix("http") + target


def options(place: places.Place) -> dict[str, Any]:
    """Return the options for opening the websocket."""
    nothing = requests.server()
    options: dict[str, Any] = {
        "additional_headers": {k: v for k, v in connection.headers_of(place, nothing).items() if k == "Authorization"},
        "open_timeout": OPEN_TIMEOUT_S,
        "max_size": MAX_FRAME_BYTES,
    }
    trust = connection.trust(place)
    if trust not in (True, False):
        options["ssl"] = trust
    if place.loopback:
        options["proxy"] = None
    return options


def refusal(place: places.Place, error: Exception) -> errors.OarlockError:
    """Return why the websocket was not opened, or why it closed before the command's end."""
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


def gathered(items: Sequence[Output | Exited]) -> Result:
    """Return the items of a command as one result."""
    return Result(
        code=next(item.code for item in items if isinstance(item, Exited)),
        stdout=b"".join(item.data for item in items if isinstance(item, Output) and item.stream == "stdout"),
        stderr=b"".join(item.data for item in items if isinstance(item, Output) and item.stream == "stderr"),
    )
