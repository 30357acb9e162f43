"""Half requests end, and do not take the descriptors of whole requests."""

from __future__ import annotations

import contextlib
import http.client
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests import needs
from tests.api.process import test_server

FEW = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
"""

IMPATIENT = """
from oarlock.api.process import connections
connections.PENDING_S = 0.2
"""

HALF = b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
WHOLE = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
UNWANTED = b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\n{"


@pytest.fixture
def start(home: Path) -> Iterator[Callable[..., test_server.Server]]:
    with contextlib.ExitStack() as stack:

        def begin(*flags: str, **more: str) -> test_server.Server:
            made = test_server.Server(home, *flags, **more)
            stack.callback(made.close)
            return made.ready()

        yield begin


def connect(server: test_server.Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=280)


def ended(sock: socket.socket) -> bytes:
    """Return the bytes that still come once the server has closed. A time-out fails the test."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := sock.recv(65536):
            parts.append(part)
    return b"".join(parts)


def drip(sock: socket.socket, stop: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while not stop.wait(0.02):
            sock.send(b"a")


def test_requests_that_never_get_whole_are_ended(start: Callable[..., test_server.Server]) -> None:
    server = start(first=IMPATIENT)
    token = (server.home / "token").read_text().strip()
    kept = http.client.HTTPConnection("127.0.0.1", server.port, timeout=280)
    polls = http.client.HTTPConnection("127.0.0.1", server.port, timeout=280)
    with contextlib.closing(kept), contextlib.closing(polls), contextlib.ExitStack() as stack:
        kept.request("GET", "/healthz")
        kept.getresponse().read()
        mine = kept.sock
        polls.request("GET", "/api/v1/events?after=100000&wait=60", headers={"Authorization": f"Bearer {token}"})
        stop = threading.Event()
        stack.callback(stop.set)
        for begun in (b"", b"GET", HALF, UNWANTED, WHOLE + HALF):
            standing, dripping = (stack.enter_context(connect(server)) for _ in range(2))
            for sock in (standing, dripping):
                sock.sendall(begun)
            threading.Thread(target=drip, args=(dripping, stop)).start()
            for sock in (standing, dripping):
                said = ended(sock)
                assert (b" 401 " in said[:20]) == (begun is UNWANTED), begun
        kept.request("GET", "/healthz")
        assert kept.getresponse().read()
        assert kept.sock is mine, "a connection between two requests is no half one"
        assert server.ask("POST", "/api/v1/shutdown")[0] == 202
        assert polls.getresponse().status == 200, "nor is one with a slow answer"


@contextlib.contextmanager
def descriptors(count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        needs.skip("descriptors", f"{hard} of {count}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_hundreds_of_half_requests_leave_descriptors_for_whole_ones(start: Callable[..., test_server.Server]) -> None:
    """With 64 descriptors. The log of a server that runs out of them grows by megabytes in seconds."""
    server = start(first=FEW)
    token = (server.home / "token").read_text().strip()
    polls = http.client.HTTPConnection("127.0.0.1", server.port, timeout=280)
    spec = {"command": "true", "framework": "plain"}
    with descriptors(800), contextlib.closing(polls), contextlib.ExitStack() as stack:
        polls.request("GET", "/api/v1/events?after=100000&wait=60", headers={"Authorization": f"Bearer {token}"})
        for number in range(300):
            stack.enter_context(connect(server)).sendall(HALF)
            if number % 30 == 0:
                assert server.ask("GET", "/healthz")[0] == 200
        status, job = server.ask("POST", "/api/v1/jobs", {"spec": {**spec, "name": "through"}})
        assert status == 201, job
        test_server.wait_for(lambda: server.ask("GET", "/api/v1/jobs/through")[1]["phase"] == "COMPLETED")
        opened = len(os.listdir(f"/proc/{server.process.pid}/fd"))  # noqa: PTH208  (names only)
        assert opened < 64
        assert server.ask("POST", "/api/v1/shutdown")[0] == 202
        assert polls.getresponse().status == 200, "a request under way was not cut off"
    assert server.process.wait(timeout=280) == 0
    log = (server.home / "server.log").read_text()
    assert len(log) < 100_000
    assert "connections_closed_for_room" in log
    assert "out of system resource" not in log


def test_without_a_free_descriptor_connections_are_refused_one_by_one(
    start: Callable[..., test_server.Server],
) -> None:
    """As when files have taken those that were counted upon: accept fails, and neither spins nor fills the log."""
    server = start()
    test_server.wait_for(lambda: server.ask("GET", "/readyz")[0] == 200)
    pid = server.process.pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    opened = max(int(name) for name in os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208  (names only)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (opened + 1, limits[1]))
    with descriptors(800), contextlib.ExitStack() as stack:
        many = [stack.enter_context(connect(server)) for _ in range(300)]
        closed = [sock for sock in many[-50:] if ended(sock) == b""]
        assert len(closed) == 50
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    test_server.wait_for(lambda: _answers(server))
    assert (server.home / "server.log").stat().st_size < 100_000


def _answers(server: test_server.Server) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        return server.ask("GET", "/healthz")[0] == 200
    return False
