"""Foreign bytes at a parameter server's port: refused, without a crash and without memory taken for them."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psutil
import pytest
import torch
from tests.train.servers import farm

from oarlock.train import errors
from oarlock.train.servers import addresses
from oarlock.train.servers.model import openings
from oarlock.train.servers.process import server
from oarlock.train.servers.wire import frames, handshake, memory, transport
from oarlock.train.servers.workers import links

Kind = frames.Kind
OPENING = openings.Opening((openings.Piece("w", 0, (4,), "float32", 0),), "SGD", openings.Mode(1))
SETTINGS = [{"lr": 0.5}]
HUGE = 1 << 60


@pytest.fixture
def servers() -> Iterator[addresses.Addresses]:
    with farm.running() as one:
        yield one


def stranger(servers: addresses.Addresses) -> transport.Tcp:
    """A connection that has read the challenge and said nothing yet."""
    host, port = servers.newest(0)
    connection = transport.Tcp(socket.create_connection((host, port)))
    connection.limit(20)
    assert connection.head().kind is Kind.CHALLENGE
    return connection


def worker(servers: addresses.Addresses, workers: int = 1) -> links.Link:
    return links.Link(servers, 0, handshake.Place(0, workers, 1, "step"))


def trains(servers: addresses.Addresses) -> None:
    """A task of the attempt is served: one step of SGD."""
    link = worker(servers)
    link.ask(Kind.OPEN, OPENING.fields())
    weights, gradient = torch.ones(4), torch.full((4,), 2.0)
    link.ask(Kind.LOAD, {"version": 0, "settings": SETTINGS}, [memory.view(weights)])
    step = {"base": 0, "number": 0, "absent": [], "settings": SETTINGS, "wish": 0}
    link.start(Kind.STEP, step, [memory.view(gradient)])
    link.finish(lambda head: [memory.view(weights)])
    assert weights.tolist() == [0.0] * 4
    link.ask(Kind.DONE, {"wish": 0, "wait": False})
    link.close()


def frame(kind: int, json: bytes = b"{}", body_bytes: int = 0, magic: bytes = b"oars", version: int = 1) -> bytes:
    return struct.pack("<4sBBHIQ", magic, version, kind, 0, len(json), body_bytes) + json


STRANGE: dict[str, bytes] = {
    "another protocol": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 4,
    "another version": frame(2, version=9),
    "an unknown kind": frame(99),
    "a huge JSON": struct.pack("<4sBBHIQ", b"oars", 1, 2, 0, 0xFFFFFFFF, 0),
    "a huge body": frame(2, body_bytes=HUGE),
    "a request before the greeting": frame(4),
    "no JSON": frame(2, b"\xff\xfe not json"),
    "deep JSON": frame(2, b"[" * 4000),
    "no object": frame(2, b"[1, 2]"),
    "no proof": frame(2, b'{"nonce": "0123456789abcdef0123456789abcdef", "place": {}}'),
    "half a surrogate pair": frame(
        2, b'{"nonce": "0123456789abcdef0123456789abcdef", "proof": "\\ud800", "place": {}}'
    ),
    "a pickle": b"\x80\x04\x95" + b"cos\nsystem\n(S'true'\ntR." * 10,
}


@pytest.mark.parametrize("sent", STRANGE.values(), ids=STRANGE.keys())
def test_strangers_are_refused(servers: addresses.Addresses, sent: bytes) -> None:
    connection = stranger(servers)
    connection._socket.sendall(sent)
    try:
        assert connection.head().kind is Kind.ERROR
        with pytest.raises(OSError):  # noqa: PT011  (closed, in one of several ways)
            connection.head()
    except ConnectionError:
        pass  # closed at once, because it had sent more than was read
    connection.close()
    trains(servers)


def test_a_task_of_another_attempt_is_refused(servers: addresses.Addresses) -> None:
    other = addresses.Addresses(servers.servers, "the token of another attempt")
    with pytest.raises(errors.ServerError, match="token is not that of this attempt"):
        worker(other)
    trains(servers)


def test_a_worker_notices_a_server_without_the_token() -> None:
    """A program that took the server's port cannot pretend: it gets no gradients."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        served, _ = listener.accept()
        impostor, victim = transport.Tcp(served), transport.Tcp(client)
        impostor.send(Kind.CHALLENGE, {"nonce": "00" * 16})
        impostor.send(Kind.WELCOME, {"proof": "00" * 32})
        with pytest.raises(frames.Refused, match="does not know the token"):
            handshake.greet(victim, farm.TOKEN, handshake.Place(0, 1, 1, "step"))
        impostor.close()
        victim.close()


STEP: dict[str, Any] = {"base": 0, "number": 0, "absent": [], "settings": SETTINGS, "wish": 0}
OUT_OF_BOUNDS: dict[str, tuple[Kind, dict[str, Any], int]] = {
    "gradients of another length": (Kind.STEP, STEP, HUGE),
    "weights of another length": (Kind.LOAD, {"version": 0, "settings": SETTINGS}, HUGE),
    "a pull with a body": (Kind.PULL, {}, HUGE),
    "absent pieces that are not there": (Kind.STEP, {**STEP, "absent": [7]}, 0),
    "absent pieces below zero": (Kind.STEP, {**STEP, "absent": [-1]}, 0),
    "a step without fields": (Kind.STEP, {}, 0),
    "a state larger than the model's": (Kind.LOAD_STATE, {"entries": []}, HUGE),
    "a state whose entries are larger than its body": (
        Kind.LOAD_STATE,
        {"entries": [[0, "exp_avg", "float32", [1 << 20, 1 << 20], None]]},
        64,
    ),
    "a state of an unknown type": (Kind.LOAD_STATE, {"entries": [[0, "exp_avg", "object", [1], None]]}, 8),
    "another model": (Kind.OPEN, openings.Opening((), "SGD", openings.Mode(1)).fields(), 0),
    "settings that are no objects": (Kind.LOAD, {"version": 0, "settings": ["lr"]}, 16),
    "an update without gradients": (Kind.COMMIT, {"base": 0}, 0),
    "an update of many versions later": (Kind.COMMIT, {"base": 1 << 70}, 0),
    "an update with a body": (Kind.COMMIT, {"base": 0}, HUGE),
    "a huge exchange": (Kind.MEET, {"number": 1}, HUGE),
    "an answer": (Kind.OK, {}, 0),
}


@pytest.mark.parametrize(("kind", "fields", "length"), OUT_OF_BOUNDS.values(), ids=OUT_OF_BOUNDS.keys())
def test_a_worker_cannot_exceed_the_bounds(
    servers: addresses.Addresses, kind: Kind, fields: dict[str, Any], length: int
) -> None:
    """The length of every body is known before memory is taken for it: the answer comes before the body is sent."""
    link = worker(servers)
    link.ask(Kind.OPEN, OPENING.fields())
    connection = link._connection
    assert isinstance(connection, transport.Tcp)
    fits = kind is Kind.LOAD and length == OPENING.bytes
    connection._socket.sendall(frames.packed(kind, fields, length) + bytes(length if fits else 0))
    head = connection.head()
    assert head.kind is Kind.ERROR, head
    link.close()
    trains(servers)


def test_random_bytes_take_no_memory(servers: addresses.Addresses) -> None:
    chance = random.Random(7)
    before = psutil.Process().memory_info().rss
    for _ in range(200):
        connection = stranger(servers)
        sent = bytearray(frame(chance.randrange(16), b"{}" * chance.randrange(3), chance.getrandbits(63)))
        for _ in range(chance.randrange(4)):
            sent[chance.randrange(len(sent))] = chance.randrange(256)
        with contextlib.suppress(OSError):  # refused already
            connection._socket.sendall(sent + chance.randbytes(chance.randrange(2000)))
            connection._socket.shutdown(socket.SHUT_WR)
            assert connection.head().kind is Kind.ERROR
        connection.close()
    assert psutil.Process().memory_info().rss - before < 64 << 20
    trains(servers)


def test_no_more_strangers_than_a_bound_are_kept(servers: addresses.Addresses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "GREETING_S", 3600.0)
    with ExitStack() as stack:
        waiting = [stack.enter_context(socket.create_connection(servers.newest(0))) for _ in range(100)]
        greeted = [_first_bytes(sock) for sock in waiting]
    assert sum(map(bool, greeted)) == server.MOST_STRANGERS
    trains(servers)


def test_silent_strangers_do_not_keep_the_tasks_out(
    servers: addresses.Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections that say nothing are dropped when their time is over."""
    monkeypatch.setattr(server, "GREETING_S", 2.0)
    with ExitStack() as stack:
        waiting = [stack.enter_context(socket.create_connection(servers.newest(0))) for _ in range(100)]
        trains(servers)
        for sock in waiting:
            while _first_bytes(sock):
                pass


def _first_bytes(sock: socket.socket) -> bytes:
    try:
        return sock.recv(4096)
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize("sync", [True, False])
def test_a_step_of_the_optimizer_that_fails_is_told_as_that(servers: addresses.Addresses, *, sync: bool) -> None:
    link = links.Link(servers, 0, handshake.Place(0, 1, 1, "step"))
    mode = openings.Mode(1, sync=sync)
    link.open(openings.Opening((openings.Piece("w", 0, (1,), "float64", 0),), "SGD", mode).fields())
    weight = torch.zeros(1, dtype=torch.float64)
    link.ask(Kind.LOAD, {"version": 0, "settings": [{"lr": 1.0}]}, [memory.view(weight)])
    link.start(Kind.STEP, _step(settings=[{"lr": "fast"}]), [memory.view(weight)])
    with pytest.raises(errors.TrainError, match="the step of the optimizer failed"):
        link.finish(lambda head: [memory.view(weight)])
    link.close()


def test_an_optimizer_for_the_graphs_of_a_gpu_steps_on_a_processor(servers: addresses.Addresses) -> None:
    """`capturable` is of use on a worker's GPU alone, and torch refuses it on a processor."""
    link = links.Link(servers, 0, handshake.Place(0, 1, 1, "step"))
    link.open(openings.Opening((openings.Piece("w", 0, (1,), "float64", 0),), "Adam", openings.Mode(1)).fields())
    weight, gradient = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    settings = [{"lr": 1.0, "capturable": True}]
    link.ask(Kind.LOAD, {"version": 0, "settings": settings}, [memory.view(weight)])
    for number, lr in enumerate((1.0, 2.0)):
        settings = [{"lr": lr, "capturable": True}]
        told = _step(settings=settings, base=number, number=number + 1)
        link.start(Kind.STEP, told, [memory.view(gradient)])
        link.finish(lambda head: [memory.view(weight)])
    assert weight.item() == pytest.approx(-3.0)
    link.close()


@pytest.mark.parametrize("sync", [True, False])
def test_an_assertion_of_the_optimizer_is_told(servers: addresses.Addresses, *, sync: bool) -> None:
    link = links.Link(servers, 0, handshake.Place(0, 1, 1, "step"))
    mode = openings.Mode(1, sync=sync)
    link.open(openings.Opening((openings.Piece("w", 0, (1,), "float64", 0),), "SGD", mode).fields())
    weight = torch.zeros(1, dtype=torch.float64)
    link.ask(Kind.LOAD, {"version": 0, "settings": [{"lr": 1.0}]}, [memory.view(weight)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.SGD, "step", _asserting)
        link.start(Kind.STEP, _step(settings=[{"lr": 1.0}]), [memory.view(weight)])
        with pytest.raises(errors.TrainError, match="the step of the optimizer failed: as torch does"):
            link.finish(lambda head: [memory.view(weight)])
    link.close()


def _asserting(optimizer: torch.optim.Optimizer) -> None:
    raise AssertionError("as torch does")


def _step(**told: Any) -> dict[str, Any]:
    return {"base": 0, "number": 1, "absent": [], "settings": SETTINGS, "wish": 0, **told}
