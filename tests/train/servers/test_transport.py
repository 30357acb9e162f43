"""A connection looks after its peer while it waits for the kernel: no byte is lost by that, and limits hold."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from tests.train.servers import farm

from oarlock.train import silence
from oarlock.train.servers.wire import bodies, frames, transport

LOOK_S = 0.05
PAUSE_S = 4 * LOOK_S
BODY_BYTES = 24 << 20
"""More than the buffers of a connection take."""


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[transport.Tcp, transport.Tcp]]:
    monkeypatch.setattr(transport, "_LOOK_S", LOOK_S)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = transport.Tcp(socket.create_connection(listener.getsockname()))
        far = transport.Tcp(listener.accept()[0])
    with contextlib.closing(near), contextlib.closing(far):
        yield near, far


def read(connection: transport.Tcp) -> tuple[frames.Head, bytes]:
    head = connection.head()
    body = memoryview(bytearray(head.body_bytes))
    connection.body([body[:5], body[5:]])
    return head, bytes(body)


def wait_until_full(connection: transport.Tcp) -> None:
    """Wait until the peer takes no more, and for much longer than the connection waits for the kernel."""
    full_since = time.monotonic()
    while time.monotonic() - full_since < PAUSE_S:
        if select.select([], [connection._socket], [], 0)[1]:
            full_since = time.monotonic()
        time.sleep(LOOK_S)


def test_a_frame_that_comes_in_pieces_is_read_as_a_whole(ends: tuple[transport.Tcp, transport.Tcp]) -> None:
    near, far = ends
    body = os.urandom(300_000)
    whole = frames.packed(frames.Kind.STEP, {"base": 3}, len(body)) + body
    reading = farm.aside(read, near)
    places = [0, 7, 25, 100_000, len(whole)]
    for start, stop in itertools.pairwise(places):
        time.sleep(PAUSE_S)
        far._socket.sendall(whole[start:stop])
    head, found = reading.result(60)
    assert (head.fields, found) == ({"base": 3}, body)


def test_a_frame_that_is_read_in_pieces_is_sent_as_a_whole(ends: tuple[transport.Tcp, transport.Tcp]) -> None:
    near, far = ends
    pieces = [memoryview(os.urandom(BODY_BYTES // 8)) for _ in range(8)]
    sending = farm.aside(near.send, frames.Kind.STEP, {"base": 3}, [*pieces[:4], memoryview(b""), *pieces[4:]])
    sending.add_done_callback(lambda _: near.close())  # what was sent arrives all the same
    wait_until_full(near)
    head, found = far.head(), bytearray(BODY_BYTES)
    for start in range(0, BODY_BYTES, BODY_BYTES // 4):
        time.sleep(PAUSE_S)
        far.body([memoryview(found)[start : start + BODY_BYTES // 4]])
    sending.result(60)
    assert (head.fields, bytes(found)) == ({"base": 3}, b"".join(pieces))


def test_a_frame_whose_body_is_shared_waits_for_a_peer_that_reads_nothing(
    ends: tuple[transport.Tcp, transport.Tcp],
) -> None:
    near, far = ends
    fields = {"text": "x" * 100_000}
    count = BODY_BYTES // 100_000
    sending = farm.aside(lambda: [near.announce(frames.Kind.STEP, fields, bodies.LEAST_BYTES) for _ in range(count)])
    sending.add_done_callback(lambda _: near.close())  # what was sent arrives all the same
    wait_until_full(near)
    for _ in range(count):
        head = far.head(shared_bytes=bodies.LEAST_BYTES)
        assert head == frames.Head(frames.Kind.STEP, fields, bodies.LEAST_BYTES, shared=True)
    sending.result(60)


def test_a_peer_that_reads_nothing_is_given_up_once_it_is_known_to_be_gone(
    ends: tuple[transport.Tcp, transport.Tcp],
) -> None:
    near, _ = ends
    gone = threading.Event()
    near._is_over = gone.is_set
    sending = farm.aside(near.send, frames.Kind.STEP, {}, [memoryview(bytes(BODY_BYTES))])
    wait_until_full(near)
    time.sleep(PAUSE_S)
    assert not sending.done()
    gone.set()
    with pytest.raises(TimeoutError, match="replaced"):
        sending.result(60)


def test_a_limit_holds_for_all_that_follows_until_it_is_taken_back(ends: tuple[transport.Tcp, transport.Tcp]) -> None:
    near, far = ends
    near.limit(PAUSE_S)
    whole = frames.packed(frames.Kind.PULL, {}, 0)
    for number in range(len(whole) - 1):  # each byte within the limit
        far._socket.sendall(whole[number : number + 1])
    with pytest.raises(TimeoutError):
        near.head()
    near.limit(None)
    reading = farm.aside(near.head)
    time.sleep(PAUSE_S + LOOK_S)
    far.send(frames.Kind.PULL, {})
    assert reading.result(60).kind is frames.Kind.PULL


def test_a_system_that_tells_nothing_calls_no_peer_silent(
    ends: tuple[transport.Tcp, transport.Tcp], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "UNANSWERED", 0)
    near, _ = ends
    time.sleep(PAUSE_S)
    assert silence.is_silent(near._socket, 0.0), "the kernel tells of it"
    monkeypatch.delattr(socket, "TCP_INFO")
    assert not silence.is_silent(near._socket, 0.0)
