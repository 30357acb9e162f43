"""The agent's HTTP client: one keep-alive HTTP/1.1 connection for each thread that sends requests, over plain sockets.

http.client and urllib would cost the agent a third of its memory and start-up; this module has the few parts of HTTP
that the protocol needs. It never uses a proxy. TLS is loaded only if the server's URL asks for it, and always verified.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from oarlock.agent.assignment import Assignment

ANSWER_LIMIT_BYTES = 64 << 20
HEAD_LIMIT_BYTES = 64 << 10
SILENCE_S = 30.0  # longest silence of the server during an answer, in addition to the wait of a long poll
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
REFUSALS_UNTIL_STALE = 3


class Stale(Exception):
    """The server no longer wants this task: the agent kills its processes and ends."""


class Abandoned(Exception):
    """The caller no longer wants the answer (`abandon` of `Client.ask`)."""


class Broken(OSError):
    """The answer is not HTTP, or ended early. The connection cannot be used any more."""


class Answer:
    """One HTTP answer: `status`, and `body` (empty if it was streamed into a sink)."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.body = body

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def json(self) -> dict[str, Any]:
        """Return the body as an object.

        Any other body counts as an empty object, so that every field reads as absent.
        """
        try:
            value = json.loads(self.body.decode("utf-8")) if self.body else {}
        except ValueError:
            value = {}
        return value if isinstance(value, dict) else {}


class Client:
    """A client that asks until the server answers."""

    def __init__(self, assignment: Assignment, on_contact: Callable[[], None]) -> None:
        self._assignment = assignment
        self._on_contact = on_contact
        self._connection: Connection | None = None

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        wait_s: float = 0.0,
        sink: Callable[[bytes], object] | None = None,
        abandon: Callable[[], bool] | None = None,
    ) -> Answer:
        """Return the first 2xx or 4xx answer, however long that takes. Raise Stale at 410, or at the third 401 or 403.

        `body`: bytes are sent raw, any other value as JSON. If the connection breaks, the bytes already passed to
        `sink` stay there, and the next answer starts from its beginning: the caller resets in `abandon`, or checks a
        digest.
        """
        pause_s, refusals = FIRST_PAUSE_S, 0
        while True:
            if abandon is not None and abandon():
                raise Abandoned
            try:
                answer = self._once(method, path, body, wait_s, sink)
            except (OSError, ValueError):  # ValueError: not a URL, as in a half-written server file
                answer = Answer(0, b"")
            if 200 <= answer.status < 500 and answer.status not in (408, 429):
                self._on_contact()
                if answer.status == 410:
                    raise Stale
                if answer.status not in (401, 403):
                    return answer
                refusals += 1
                if refusals >= REFUSALS_UNTIL_STALE:
                    raise Stale
                pause_s = 1.0
            time.sleep(pause_s * (0.75 + os.urandom(1)[0] / 512.0))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _once(
        self, method: str, path: str, body: object, wait_s: float, sink: Callable[[bytes], object] | None
    ) -> Answer:
        """Try once.

        A kept connection that the server has closed meanwhile is replaced, which does not count as a try.
        """
        kept = self._connection is not None and self._connection.usable()
        if not kept:
            self._connection = Connection(self._assignment)
        connection = self._connection
        assert connection is not None
        try:
            return connection.exchange(method, path, body, wait_s, sink)
        except OSError:
            connection.close()
            if not kept or connection.heard:
                raise
            self._connection = Connection(self._assignment)
            return self._connection.exchange(method, path, body, wait_s, sink)


class Connection:
    """A TCP or TLS connection to the server's present address (`server_file` is read for every new connection)."""

    def __init__(self, assignment: Assignment) -> None:
        secure, self._host, port, self._base = split_url(server_url(assignment))
        self._head = f"Authorization: Bearer {assignment.token}\r\nOarlock-Task: {assignment.key.text}\r\n"
        self._buffer = b""
        self._open = True
        self.heard = False  # a byte of the present answer has arrived: the request must not be repeated
        plain = socket.create_connection((self._host.strip("[]"), port), timeout=10.0)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = _wrap(plain, self._host.strip("[]"), assignment.ca_file) if secure else plain

    def usable(self) -> bool:
        """Return False once the server has closed its side: an idle connection then has something to read."""
        if not self._open or self._buffer:
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if poll.poll(0):
            self.close()
        return self._open

    def close(self) -> None:
        self._open = False
        with contextlib.suppress(OSError):
            self._socket.close()

    def exchange(
        self, method: str, path: str, body: object, wait_s: float, sink: Callable[[bytes], object] | None
    ) -> Answer:
        payload, kind = body, "application/octet-stream"
        if not isinstance(payload, bytes):
            payload = b"" if body is None else _encode(body)
            kind = "application/json"
        head = f"{method} {self._base}/agent/v1{path} HTTP/1.1\r\nHost: {self._host}\r\n{self._head}"
        if payload or method != "GET":
            head += f"Content-Type: {kind}\r\nContent-Length: {len(payload)}\r\n"
        self.heard = False
        self._socket.settimeout(wait_s + SILENCE_S)
        self._socket.sendall((head + "\r\n").encode("latin-1") + payload)
        return self._answer(sink)

    def _answer(self, sink: Callable[[bytes], object] | None) -> Answer:
        status, headers = self._read_head()
        while 100 <= status < 200:
            status, headers = self._read_head()
        parts: list[bytes] = []
        keep = sink if sink is not None and status == 200 else parts.append
        if status not in (204, 304):
            self._read_body(headers, keep)
        if headers.get("connection", "").lower() == "close":
            self.close()
        return Answer(status, b"".join(parts))

    def _read_head(self) -> tuple[int, dict[str, str]]:
        while b"\r\n\r\n" not in self._buffer:
            if len(self._buffer) > HEAD_LIMIT_BYTES:
                raise Broken("the answer's head is too long")
            self._fill()
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
            raise Broken("not an HTTP answer")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        return int(words[1]), headers

    def _read_body(self, headers: dict[str, str], keep: Callable[[bytes], object]) -> None:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while self._read_chunk(keep):
                pass
        elif "content-length" in headers:
            self._read_exactly(_number(headers["content-length"], 10), keep)
        else:
            self._read_to_end(keep)

    def _read_chunk(self, keep: Callable[[bytes], object]) -> bool:
        size = _number(self._read_line().split(b";")[0].decode("latin-1"), 16)
        if size:
            self._read_exactly(size, keep)
            self._read_line()
            return True
        while self._read_line():
            pass  # trailers
        return False

    def _read_line(self) -> bytes:
        while b"\r\n" not in self._buffer:
            if len(self._buffer) > HEAD_LIMIT_BYTES:
                raise Broken("a line of the answer is too long")
            self._fill()
        line, _, self._buffer = self._buffer.partition(b"\r\n")
        return line

    def _read_exactly(self, left: int, keep: Callable[[bytes], object]) -> None:
        if left > ANSWER_LIMIT_BYTES and getattr(keep, "__self__", None).__class__ is list:
            raise Broken("the answer is too long")
        while left:
            if not self._buffer:
                self._fill()
            part, self._buffer = self._buffer[:left], self._buffer[left:]
            left -= len(part)
            keep(part)

    def _read_to_end(self, keep: Callable[[bytes], object]) -> None:
        if self._buffer:
            keep(self._buffer)
        self._buffer = b""
        while True:
            part = self._socket.recv(65536)
            if not part:
                self.close()
                return
            keep(part)

    def _fill(self) -> None:
        part = self._socket.recv(65536)
        if not part:
            raise Broken("the server closed the connection")
        self.heard = True
        self._buffer += part


def server_url(assignment: Assignment) -> str:
    """Return the server's present URL. A local server may restart on another port and write that to its file."""
    if assignment.server_file:
        try:
            with open(assignment.server_file, encoding="utf-8") as file:
                url = json.load(file).get("url")
            if isinstance(url, str) and url:
                return url
        except (OSError, ValueError, AttributeError):
            pass
    return assignment.server


def split_url(url: str) -> tuple[bool, str, int, str]:
    """Return (is https, host, port, base path) of a server's URL. IPv6 hosts keep their brackets."""
    scheme, _, rest = url.partition("://")
    if scheme not in ("http", "https"):
        raise Broken(f"the server's URL must begin with http:// or https://, not {url!r}")
    authority, slash, path = rest.partition("/")
    host, colon, port = authority.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = authority, ""
    base = (slash + path).rstrip("/")
    return scheme == "https", host, int(port or (443 if scheme == "https" else 80)), base


def _encode(value: object) -> bytes:
    """Return standard JSON: a number that is NaN or infinite, such as a loss, becomes null."""
    try:
        return json.dumps(value, allow_nan=False).encode()
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False).encode()


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list) else value


def _number(text: str, radix: int) -> int:
    try:
        value = int(text, radix)
    except ValueError:
        value = -1
    if value < 0:
        raise Broken(f"{text!r} is not a valid length")
    return value


def _wrap(plain: socket.socket, host: str, ca_file: str | None) -> socket.socket:
    import ssl  # 5 MB and 10 ms: only if the URL asks for it

    try:
        context = ssl.create_default_context(cafile=ca_file)
        return context.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise
