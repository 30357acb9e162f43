"""A command in a task's container, over a WebSocket of the API server.

Each message begins with the number of its channel: 0 our input, 1 and 2 output, 3 the status at the end, 4 the size of
the terminal. Source: `v4.channel.k8s.io` in apiserver's package `wsstream`, and v5, where an input can be closed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from urllib.parse import urlencode

import msgspec
import websockets
from websockets.asyncio import client as sockets

from oarlock.backends.kubernetes.apiserver import client, objects
from oarlock.spec import errors

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDIN, STDOUT, STDERR, STATUS, SIZE, CLOSE = 0, 1, 2, 3, 4, 255
OPEN_S = 30.0
MAX_BYTES = 1 << 24
_STREAMS = {STDOUT: "stdout", STDERR: "stderr"}
_EXIT_CODE = "ExitCode"
UNKNOWN_CODE = 255


class PodCommand:
    """One running command. The first to read its output gets all of it."""

    def __init__(self, socket: sockets.ClientConnection) -> None:
        self._socket = socket

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        code = UNKNOWN_CODE
        try:
            async for message in self._socket:
                data = message.encode() if isinstance(message, str) else message
                if not data:
                    continue
                channel, content = data[0], data[1:]
                if channel == STATUS:
                    code = exit_code(content)
                elif channel in _STREAMS and content:
                    yield _STREAMS[channel], content
        except websockets.ConnectionClosedError:
            pass  # without a status: the code stays unknown
        yield "exit", str(code).encode()

    async def write(self, data: bytes) -> None:
        await self._send(STDIN, data)

    async def close_stdin(self) -> None:
        """Close the command's input. Before version 1.29 Kubernetes cannot: the command then sees no end."""
        if self._socket.subprotocol == PROTOCOLS[0]:
            await self._send(CLOSE, bytes([STDIN]))

    async def resize(self, rows: int, columns: int) -> None:
        await self._send(SIZE, msgspec.json.encode({"Width": columns, "Height": rows}))

    async def kill(self) -> None:
        """Let go of the command: the runtime ends what has a terminal."""
        await self._socket.close()

    async def _send(self, channel: int, data: bytes) -> None:
        try:
            await self._socket.send(bytes([channel]) + data)
        except websockets.ConnectionClosed as error:
            raise errors.Conflict("the command has ended", hint="Start it again.") from error


async def start(
    api: client.Client, path: str, container: str, command: Sequence[str], *, tty: bool, rows: int, columns: int
) -> PodCommand:
    """Start a command in the pod at `path`. Raises Unavailable, or Conflict where the container does not run."""
    asked = [("container", container), ("stdin", "true"), ("stdout", "true"), ("tty", str(tty).lower())]
    asked += [] if tty else [("stderr", "true")]  # a terminal has one stream
    asked += [("command", word) for word in command]
    access = api.access
    url = f"{access.server.replace('http', 'ws', 1)}{path}/exec?{urlencode(asked)}"
    try:
        socket = await sockets.connect(
            url,
            ssl=access.tls,
            server_hostname=access.host_name if access.tls is not None else None,
            additional_headers=dict(await access.identity.headers()),
            subprotocols=[websockets.Subprotocol(name) for name in PROTOCOLS],
            open_timeout=OPEN_S,
            max_size=MAX_BYTES,
            compression=None,
            proxy=access.proxy,
        )
    except websockets.InvalidStatus as error:
        body = (error.response.body or b"").decode(errors="replace")[:300]
        raise errors.Conflict(
            f"the cluster refused the command ({error.response.status_code}): {body}",
            hint="`oarlock show` tells the state of each task.",
        ) from error
    except websockets.InvalidProxy:  # it names the URL, which may have a password
        raise errors.Unavailable(
            "the command could not be started: the proxy on the way to the API server cannot be used",
            hint="Correct HTTPS_PROXY, or `proxy-url` of the kubeconfig, and start the server again.",
        ) from None
    except (OSError, TimeoutError, websockets.WebSocketException) as error:
        raise errors.Unavailable(
            f"the command could not be started: {errors.words(error)}", hint="Try again in a moment."
        ) from error
    started = PodCommand(socket)
    if tty:
        await started.resize(rows, columns)
    return started


def exit_code(status: bytes) -> int:
    """Return the exit code in the last message of a command."""
    try:
        found = msgspec.json.decode(status, type=_Ended)
    except msgspec.MsgspecError:
        return UNKNOWN_CODE
    if found.status == "Success":
        return 0
    causes = found.details.causes if found.details is not None else ()
    said = next((cause.message for cause in causes if cause.reason == _EXIT_CODE), "")
    return int(said) if said.isdigit() else UNKNOWN_CODE


class _Ended(objects.Part, frozen=True):
    status: str = ""
    details: objects.StatusDetails | None = None
