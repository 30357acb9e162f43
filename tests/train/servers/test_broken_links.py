"""Connections between workers and parameter servers that break while both sides live."""

from __future__ import annotations

import collections
import errno
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from tests.train import crew
from tests.train.servers import farm
from torch import nn

from oarlock import train
from oarlock.train import agreement, errors
from oarlock.train.servers import addresses, children
from oarlock.train.servers.model import openings
from oarlock.train.servers.process import meeting, server, snapshots
from oarlock.train.servers.wire import frames, handshake, transport
from oarlock.train.servers.workers import exchanges, links

STEPS = 12


@contextmanager
def losing(servers: addresses.Addresses, drops: Callable[[frames.Kind], bool]) -> Iterator[addresses.Addresses]:
    """The address of a wire to the server, which breaks instead of bringing the answers to some requests."""

    def relay(sock: socket.socket) -> None:
        theirs, ours = transport.Tcp(sock), transport.Tcp(socket.create_connection(servers.newest(0)))
        try:
            carry(ours, theirs)  # the challenge
            while not drops(carry(theirs, ours)):
                carry(ours, theirs)
            ours.head()  # so that the server has taken it
        except (OSError, frames.Refused):
            pass
        finally:
            theirs.close()
            ours.close()

    with relaying(relay) as port:
        yield addresses.Addresses((f"127.0.0.1:{port}",), servers.token)


@contextmanager
def relaying(relay: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port of a wire: each connection to it is served by `relay`."""

    def accept() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=relay, args=(sock,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@contextmanager
def serving(one: server.Server) -> Iterator[None]:
    thread = threading.Thread(target=one.serve)
    thread.start()
    try:
        yield
    finally:
        one.close()
        thread.join()


def received(source: transport.Tcp) -> tuple[frames.Head, memoryview]:
    head = source.head()
    body = memoryview(bytearray(head.body_bytes))
    source.body([body])
    return head, body


def carry(source: transport.Tcp, target: transport.Tcp) -> frames.Kind:
    head, body = received(source)
    target.send(head.kind, head.fields, [body])
    return head.kind


def counted(folder: Path, *, sync: bool = False) -> None:
    """Each gradient of this model is 1, and each step moves the weight by it."""
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    train.data_parallel(model, optimizer, strategy=train.ParameterServers(sync=sync))
    with train.Session(model=model, optimizer=optimizer, total_steps=STEPS) as session:
        for _ in session.steps():
            optimizer.zero_grad()
            model(torch.ones(1, 1).double()).sum().backward()
            optimizer.step()
    torch.save(model.weight.detach(), folder / f"counted-{train.rank()}.pt")


@pytest.mark.long
def test_each_gradient_is_applied_once_where_answers_are_lost(tmp_path: Path) -> None:
    steps = iter(range(1, 10_000))
    with (
        farm.running() as servers,
        losing(servers, lambda kind: kind is frames.Kind.STEP and next(steps) % 3 == 0) as wire,
    ):
        assert crew.run(counted, tmp_path, folder=tmp_path, env=farm.variables(wire)) == [0, 0], crew.output(tmp_path)
    # A worker whose connection is broken is not waited for, so that the other one may end with fewer.
    assert min(torch.load(tmp_path / f"counted-{rank}.pt").item() for rank in range(2)) == -2 * STEPS
    assert next(steps) > 2 * STEPS + 10, "answers were lost"


def counted_in_step(folder: Path) -> None:
    counted(folder, sync=True)


def counted_with_exchanges(folder: Path) -> None:
    agreement.MOST_STEPS = 1  # each step waits for its own exchange, and no other one is under way meanwhile
    counted(folder, sync=True)


def test_a_worker_in_a_step_gives_its_value_of_an_exchange_again(tmp_path: Path) -> None:
    """The server dies after one worker got the result of an exchange and before the other one did."""
    first, second = (server.Server(("127.0.0.1", 0), farm.TOKEN) for _ in range(2))
    alive = [first]
    steps, meetings = itertools.count(1), collections.Counter[int]()
    asked = [0]
    in_step: set[object] = set()
    died = threading.Event()

    def relay(sock: socket.socket) -> None:
        theirs, ours = transport.Tcp(sock), transport.Tcp(socket.create_connection(("127.0.0.1", alive[0].port)))
        numbers: collections.deque[int] = collections.deque()

        def ask() -> None:
            with suppress(OSError, frames.Refused):
                while True:
                    head, body = received(theirs)
                    if head.kind is frames.Kind.STEP:
                        asked[0] = next(steps)
                        in_step.add(sock)
                    if not head.fields.get("again"):
                        numbers.append(head.fields.get("number", 0) if head.kind is frames.Kind.MEET else 0)
                    ours.send(head.kind, head.fields, [body])
            ours.close()

        with suppress(OSError, frames.Refused):
            carry(ours, theirs)  # the challenge
            threading.Thread(target=ask, daemon=True).start()
            while True:
                head, body = received(ours)
                in_step.discard(sock)
                number = numbers.popleft()
                meetings[number] += 1
                if number and meetings[number] == 2 and asked[0] > 6 and not died.is_set():
                    died.set()
                    while not in_step:  # the other worker has the result, and goes on to its next step
                        time.sleep(0.01)
                    alive[0] = second
                    first.close()
                    break
                theirs.send(head.kind, head.fields, [body])
        theirs.close()
        ours.close()

    with serving(first), serving(second), relaying(relay) as port:
        wire = addresses.Addresses((f"127.0.0.1:{port}",), farm.TOKEN)
        codes = crew.run(counted_with_exchanges, tmp_path, folder=tmp_path, env=farm.variables(wire))
        assert codes == [0, 0], crew.output(tmp_path)
    assert [torch.load(tmp_path / f"counted-{rank}.pt").item() for rank in range(2)] == [-STEPS] * 2
    assert died.is_set()


def test_a_server_that_ends_calls_no_worker_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that waits would end with that message, and would not look for the server's successor."""
    close = transport.Tcp.close

    def slowly(connection: transport.Tcp) -> None:
        close(connection)
        time.sleep(0.05)  # the server's other threads go on between two ends

    one = server.Server(("127.0.0.1", 0), farm.TOKEN)
    with serving(one):
        servers = addresses.Addresses((f"127.0.0.1:{one.port}",), farm.TOKEN)
        made = [links.Link(servers, 0, handshake.Place(rank, 12, 1, "meet")) for rank in range(12)]
        waiting = made[:6]  # the server notices the end of the others' connections at once
        for link in waiting:
            link.start(frames.Kind.MEET, {"number": 1}, [])
        while len(one.service._attendances[0].meeting._values.get(1, ())) < len(waiting):
            time.sleep(0.001)
        monkeypatch.setattr(transport.Tcp, "close", slowly)
    monkeypatch.undo()
    outcomes = []
    for link in waiting:
        with pytest.raises(errors.ServerError) as ended:
            link.finish()
        outcomes.append(ended.type)
    for link in made:
        link.close()
    assert outcomes == [links.Lost] * len(waiting)


def test_an_exchange_is_answered_again_where_its_answer_was_lost() -> None:
    with farm.running() as servers, ThreadPoolExecutor(2) as pool:
        first, second = pool.map(
            lambda rank: exchanges.Exchanges(servers, handshake.Place(rank, 2, 1, "meet")), range(2)
        )
        assert list(pool.map(lambda one: one.gather(one.joins), (first, second))) == [[False] * 2] * 2
        waiting = first.start_largest([3, 4])
        assert second.start_largest([5, 1])() == [5, 4]
        first._link._connection.close()
        assert waiting() == [5, 4]
        first.close()
        second.close()


def test_a_server_that_was_replaced_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was stopped, and then its host died: the kernel tells of that after minutes, and the agent at once."""
    monkeypatch.setenv("OARLOCK_REPORT", str(tmp_path))
    with farm.running() as stopped, farm.running() as successor:
        first = exchanges.Exchanges(stopped, handshake.Place(0, 2, 1, "meet"))
        announce(tmp_path, stopped)
        gathered = farm.aside(first.gather, "a")
        time.sleep(1.5)
        assert not gathered.done(), "the other worker was not there"
        announce(tmp_path, successor)
        second = exchanges.Exchanges(successor, handshake.Place(1, 2, 1, "meet"))
        assert [each.result(30) for each in (farm.aside(second.gather, "b"), gathered)] == [["a", "b"]] * 2
        first.close()
        second.close()


def announce(report: Path, servers: addresses.Addresses) -> None:
    """Do as the agent does in a new round."""
    told = {"round": 2, "processes": [{"env": {addresses.VARIABLE: ",".join(servers.servers)}}]}
    (report / "new").write_text(json.dumps(told))
    (report / "new").rename(report / "rendezvous.json")


@pytest.mark.parametrize(("bytes_each", "kept"), [(1, meeting.KEPT_SMALL), (meeting.SMALL_BYTES, meeting.KEPT)])
def test_a_meeting_keeps_the_last_results_and_no_others(bytes_each: int, kept: int) -> None:
    met = meeting.Meeting(2)
    zeros, ones = b"0" * bytes_each, b"1" * bytes_each
    for number in range(100):
        met.give(1, number, ones)
        assert met.meet(0, number, zeros) == [zeros, ones]
    for number in range(100 - kept, 100):
        met.give(1, number, b"another")
        assert met.meet(0, number, b"another") == [zeros, ones]
    with pytest.raises(frames.Refused, match="over long ago"):
        met.meet(0, 100 - kept - 1, zeros)


def test_no_worker_opens_exchanges_without_end() -> None:
    met = meeting.Meeting(2)
    for number in range(meeting.MOST_AHEAD):
        met.give(0, number, b"")
    with pytest.raises(frames.Refused, match="exchanges are open"):
        met.give(0, meeting.MOST_AHEAD, b"")


OPENING = openings.Opening(
    (openings.Piece("w", 0, (1,), "float64", 0),), "SGD", openings.Mode(2, sync=False, staleness=1)
).fields()


def worker(servers: addresses.Addresses, incarnation: int = 1) -> links.Link:
    made = links.Link(servers, 0, handshake.Place(0, 2, incarnation, "step"))
    made.ask(frames.Kind.OPEN, OPENING)
    return made


def test_a_worker_that_was_replaced_is_shut_out() -> None:
    """A process that was only cut off from its machine's agent lives on, and may not train beside its successor."""
    with farm.running() as servers:
        stale = worker(servers)
        successor = worker(servers, incarnation=2)
        with pytest.raises(links.Lost):
            stale.ask(frames.Kind.PULL, {})
        with pytest.raises(errors.ServerError, match="worker 0 was replaced"):
            stale.reconnect()
        successor.ask(frames.Kind.DONE, {"wish": 0, "wait": False})
        stale.close()
        successor.close()


def test_a_server_that_is_killed_while_it_writes_leaves_nothing_for_ever(tmp_path: Path) -> None:
    path = snapshots.place(str(tmp_path), 1, 0)
    snapshots.write(path, {"version": 1})
    left = path.with_name(f"{path.name}.0123abcd.tmp")
    left.write_bytes(b"torn")
    snapshots.remove(path)
    assert not path.parent.exists()


def test_servers_of_a_chief_that_has_ended_serve_the_other_workers() -> None:
    link = worker(children.start(1))
    ending = threading.Thread(target=children._end)
    ending.start()
    ending.join(2)
    link.ask(frames.Kind.STATE, {})
    assert ending.is_alive(), "the chief waits"
    link.close()
    ending.join()


def test_weights_stay_whole_where_an_answer_breaks_off(tmp_path: Path) -> None:
    """The server dies within an answer. Its successor, which knows nothing, needs weights of one version."""
    first, second = (server.Server(("127.0.0.1", 0), farm.TOKEN) for _ in range(2))
    alive, steps = [first], itertools.count(1)

    def relay(sock: socket.socket) -> None:
        theirs, ours = transport.Tcp(sock), transport.Tcp(socket.create_connection(("127.0.0.1", alive[0].port)))
        with suppress(OSError, frames.Refused):
            carry(ours, theirs)  # the challenge
            while True:
                asked = carry(theirs, ours)
                head, body = received(ours)
                if asked is frames.Kind.STEP and next(steps) == 6:
                    sock.sendall(frames.packed(head.kind, head.fields, head.body_bytes) + body[:4])
                    alive[0] = second
                    break
                theirs.send(head.kind, head.fields, [body])
        theirs.close()
        ours.close()

    with serving(first), serving(second), relaying(relay) as port:
        wire = addresses.Addresses((f"127.0.0.1:{port}",), farm.TOKEN)
        codes = crew.run(counted_in_step, tmp_path, folder=tmp_path, world_size=1, env=farm.variables(wire))
        assert codes == [0], crew.output(tmp_path, 1)
    assert torch.load(tmp_path / "counted-0.pt").item() == -STEPS
    assert alive == [second]


def test_a_newcomer_that_comes_first_to_a_new_server_joins_the_others(tmp_path: Path) -> None:
    """It would wait for an exchange of all workers, which the others have behind them."""
    path = snapshots.place(str(tmp_path), 1, 0)
    first = server.Server(("127.0.0.1", 0), farm.TOKEN, snapshot=path)
    with serving(first):
        link = worker(addresses.Addresses((f"127.0.0.1:{first.port}",), farm.TOKEN))
        assert not link.joins
        link.ask(frames.Kind.BEGIN, {"step": 7})
        link.close()
    second = server.Server(("127.0.0.1", 0), farm.TOKEN, snapshot=path)
    with serving(second):
        link = worker(addresses.Addresses((f"127.0.0.1:{second.port}",), farm.TOKEN), incarnation=2)
        assert link.joins
        assert link.ask(frames.Kind.OPEN, OPENING)["began_at"] == 7
        link.close()
    snapshots.remove(path)
    assert not path.parent.exists()


class Overfull:
    """A listening socket in a process that has too many open files, for one moment."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.failures = [OSError(errno.EMFILE, "Too many open files"), ConnectionAbortedError()]

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            raise self.failures.pop()
        return self._listener.accept()

    def __getattr__(self, name: str) -> object:
        return getattr(self._listener, name)


def test_a_server_outlives_a_connection_that_cannot_be_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_AGAIN_S", 0)
    one = server.Server(("127.0.0.1", 0), farm.TOKEN)
    listener = Overfull(one._listener)
    monkeypatch.setattr(one, "_listener", listener)
    with serving(one):
        worker(addresses.Addresses((f"127.0.0.1:{one.port}",), farm.TOKEN)).close()
    assert not listener.failures


def test_a_worker_gives_a_server_up_that_never_greets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "WAIT_S", 0.1)
    with (
        relaying(lambda sock: sock.close()) as port,
        pytest.raises(errors.ServerError, match="cannot be reached"),
    ):
        links.Link(addresses.Addresses((f"127.0.0.1:{port}",), farm.TOKEN), 0, handshake.Place(0, 1, 1, "step"))
