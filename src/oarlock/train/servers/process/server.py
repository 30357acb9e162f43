"""The parameter server: a thread for each connection, one shard of the model, and no code of the user.

A connection is let in by the handshake alone. Before that it may send a few kilobytes and has ten seconds; at most
MOST_STRANGERS such connections are open at once. After that each body must have exactly the length that its kind has
here, which is known before memory is taken.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from oarlock.train.servers.model import openings, shares
from oarlock.train.servers.process import handover, meeting, shard, snapshots
from oarlock.train.servers.wire import bodies, frames, handshake, memory, transport
from oarlock.train.sharing import segments

GREETING_S = 10.0
MOST_STRANGERS = 64
SUCCESSOR_S = 600.0
"""For so long the workers wait in their step for the successor of one that died."""
_AGAIN_S = 1.0
_ROWS_BYTES = 16 << 20
_STATE_TIMES = 8
_STATE_BYTES = 1 << 20
"""An optimizer's state may have so many times the bytes of the weights, and so many more."""

Kind = frames.Kind


class Server:
    """The server at `address`, for the tasks that know `token`."""

    def __init__(
        self, address: tuple[str, int], token: str, *, device: torch.device | str = "cpu", snapshot: Path | None = None
    ) -> None:
        self._token = token
        self._path = snapshot
        self._snapshots: snapshots.Snapshots | None = None
        self._device = torch.device(device)
        self._lock = threading.Lock()
        self._closed = threading.Condition(self._lock)  # a connection was
        self._shard: shard.Shard | None = None
        self._meeting: meeting.Meeting | None = None
        self._connections: set[transport.Tcp] = set()
        self._strangers = threading.BoundedSemaphore(MOST_STRANGERS)
        self._wish = 0
        self._done: set[int] = set()
        self._missing: dict[int, threading.Timer] = {}  # dead workers; the others wait for their successors
        self._over = ""  # why no worker is served any more
        self._handover = handover.Handover()
        self._newest: dict[tuple[int, str], transport.Tcp] = {}
        self._incarnations: dict[int, int] = {}  # the highest of each worker
        # The step at which training began, after the workers had met. A newcomer does not meet, so it must know even
        # where it is the first to come to a server that took the place of a dead one.
        self.began_at = snapshots.beginning(snapshot) if snapshot is not None else None
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._listener = socket.create_server(address, family=family, backlog=128)
        self._closing = False
        self.port: int = self._listener.getsockname()[1]

    def serve(self) -> None:
        """Let workers in until `close`."""
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError as cause:
                if self._closing:
                    return
                # A connection that ended before it was accepted, or too many open files.
                sys.stderr.write(f"oarlock.train: a connection was not accepted ({cause})\n")
                time.sleep(_AGAIN_S)
                continue
            if not self._strangers.acquire(blocking=False):
                sock.close()
                continue
            threading.Thread(target=self._receive, args=(sock,), daemon=True).start()

    def close(self) -> None:
        """Stop listening and break all connections."""
        with self._lock:
            self._closing = True
            connections = list(self._connections)
            for timer in self._missing.values():
                timer.cancel()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        if self._snapshots is not None:
            self._snapshots.close()
        if self._shard is not None:
            self._shard.hide()
        for connection in connections:
            connection.close()
        with self._lock:  # no worker hears of these losses, which end the requests that wait for others
            for rank in {*range(self._meeting.workers if self._meeting is not None else 0), *self._incarnations}:
                self._lose(rank)

    def await_end(self, seconds: float) -> None:
        """Wait until every connection has ended, at most so long."""
        with self._lock:
            self._closed.wait_for(lambda: not self._connections, timeout=seconds)

    def _receive(self, sock: socket.socket) -> None:
        """Serve one connection to its end."""
        connection = transport.Tcp(sock)
        with self._lock:
            self._connections.add(connection)
            closing = self._closing
        try:
            place = None if closing else self._greet(connection)
            if place is not None:
                with contextlib.suppress(OSError):
                    _Desk(self, connection, place).serve()
        finally:
            with self._lock:
                self._connections.discard(connection)
                self._closed.notify_all()
            connection.close()

    def _greet(self, connection: transport.Tcp) -> handshake.Place | None:
        try:
            connection.limit(GREETING_S)
            place, proof = handshake.receive(connection, self._token)
            with self._lock:
                if self._over:
                    raise frames.Refused(self._over)
                if self._meeting is None:
                    self._meeting = meeting.Meeting(place.workers)
                if self._meeting.workers != place.workers and not place.elastic:
                    raise frames.Refused(f"{place.workers} workers, but {self._meeting.workers} are expected")
                self._place(place, connection)
                if self._over:
                    raise frames.Refused(self._over)
                joins = self.began_at is not None
            try:
                connection.send(Kind.WELCOME, {"proof": proof, "joins": joins})
            except OSError:
                self.lost(place, connection)
                raise
            connection.limit(None)
            return place
        except frames.Refused as why:
            with contextlib.suppress(OSError):
                connection.send(Kind.ERROR, {"message": str(why)})
            return None
        except OSError:
            return None
        finally:
            self._strangers.release()

    def _place(self, place: handshake.Place, connection: transport.Tcp) -> None:
        """Make this the worker's connection. Drop those of a predecessor, which may live on unseen."""
        newest = self._incarnations.get(place.rank, place.incarnation)
        if place.incarnation < newest:
            raise frames.Refused(f"worker {place.rank} was replaced: this is incarnation {place.incarnation}")
        if place.incarnation > newest:
            former = [each for each in self._newest if each[0] == place.rank]
            for each in former:
                self._newest.pop(each).close()
            if former and place.rank not in self._done:
                self._lose(place.rank)
        self._incarnations[place.rank] = place.incarnation
        self._newest[place.rank, place.purpose] = connection

    def opened(self, opening: openings.Opening) -> shard.Shard:
        """Return the shard; the first worker makes it. Raises Refused where another one has told something else."""
        with self._lock:
            if self._shard is None:
                self._shard = self._made(opening)
            if self._shard.opening != opening:
                raise frames.Refused("the workers have different models, optimizers or modes")
            return self._shard

    def _made(self, opening: openings.Opening) -> shard.Shard:
        """Return the shard, from the server's own checkpoint where the attempt has one."""
        made = shard.Shard(opening, self._device)
        if self._path is None:
            return made
        told = {"opening": json.dumps(opening.fields())}
        saved = snapshots.read(self._path)
        if saved is not None and saved["opening"] == told["opening"]:
            made.restore(saved)
            sys.stderr.write(f"oarlock.train: parameter server restored at version {made.version}\n")
        self._snapshots = snapshots.Snapshots(self._path, made, told)
        return made

    def ended(self, held: shard.Shard) -> None:
        """Forget the server's own checkpoint once no worker trains any more."""
        if held.is_over() and held.opening.mode.lockstep:
            self.began_at = None
        if self._path is not None and held.is_over():
            snapshots.remove(self._path)

    def begin(self, step: int) -> None:
        """Begin the training, with the step after this one."""
        if self._path is not None and self.began_at != step:
            snapshots.note_beginning(self._path, step)
        self.began_at = step

    def give(self, rank: int, number: int, value: bytes) -> None:
        assert self._meeting is not None
        self._meeting.give(rank, number, value)

    def meet(self, rank: int, number: int, value: bytes) -> list[bytes]:
        assert self._meeting is not None
        return self._meeting.meet(rank, number, value)

    def take(self, rank: int, most: int, *, weights: bool) -> bytes:
        """Return the state of another worker's session, for the successor of one that died."""
        return self._handover.take(rank, most, weights=weights, there=lambda: {each for each, _ in list(self._newest)})

    def wanted(self, rank: int) -> dict[str, Any]:
        with self._lock:
            return {**self._handover.wanted(rank), "missing": bool(self._missing)}

    def most(self, number: int) -> int:
        return self._handover.most(number)

    def hand_over(self, number: int, value: bytes, refused: str) -> None:
        self._handover.give(number, value, refused)

    def trains(self, rank: int) -> None:
        with self._lock:
            self._done.discard(rank)
            timer = self._missing.pop(rank, None)
        if timer is not None:
            timer.cancel()

    def finished(self, rank: int) -> None:
        self._done.add(rank)

    def wished(self, wish: int) -> int:
        """Return the strongest wish to stop that any worker has told."""
        self._wish = max(self._wish, wish)
        return self._wish

    def lost(self, place: handshake.Place, connection: transport.Tcp) -> None:
        """Take note that a worker's connection broke.

        The others need not wait for it any more, unless its training was over or it has come back by another
        connection.
        """
        with self._lock:  # so that it does not come back in between
            newest = self._newest.get((place.rank, place.purpose)) is connection
            if newest:
                del self._newest[place.rank, place.purpose]
            gives = place.purpose == "give"  # what a successor asked for may be gone with it: no death of this worker
            if newest and not gives and place.rank not in self._done and not self._closing:
                self._lose(place.rank)
            self._handover.look()

    def _lose(self, rank: int) -> None:
        """Fail the steps and exchanges that lack this worker, or let the others wait for its successor."""
        why = f"worker {rank} is gone: Connection closed by peer"
        if self._awaits_successors():
            assert self._shard is not None
            self._shard.await_successor(rank)
            if rank not in self._missing:
                timer = threading.Timer(SUCCESSOR_S, self._give_up, (rank,))
                timer.daemon = True
                timer.start()
                self._missing[rank] = timer
            if len(self._missing) == self._shard.opening.mode.workers:
                self._end_attempt()
        else:
            self._fail(rank, why)

    def _awaits_successors(self) -> bool:
        """Return whether the others wait for the successor of a worker that dies: in lockstep, once they have begun."""
        if self._shard is None or self.began_at is None or self._closing:
            return False
        return self._shard.opening.mode.lockstep and self._shard.opening.mode.workers > 1

    def _give_up(self, rank: int) -> None:
        with self._lock:
            if self._missing.get(rank) is threading.current_thread():
                self._fail(rank, f"worker {rank} is gone, and no other came in its place: Connection closed by peer")

    def _fail(self, rank: int, why: str) -> None:
        if self._meeting is not None:
            self._meeting.lose(rank, why)
        if self._shard is not None:
            self._shard.leave(rank, failed=why)

    def _end_attempt(self) -> None:
        """Refuse all workers from now on, because none is left that could tell a successor its state."""
        self._over = "all workers are gone: the gang restarts from its newest checkpoint"
        sys.stderr.write(f"oarlock.train: {self._over}\n")
        for rank, timer in self._missing.items():
            timer.cancel()
            self._fail(rank, self._over)  # threads may still wait for them


class _Desk:
    """The requests of one worker's connection."""

    def __init__(self, server: Server, connection: transport.Tcp, place: handshake.Place) -> None:
        self._server, self._socket, self._place = server, connection, place
        self._connection: transport.Connection = connection
        self._offer: segments.Offer | None = None  # memory that the worker may share
        self._shard: shard.Shard | None = None
        self._life = 0
        self._buffers: shard.Flats = []  # in the shared memory, where there is one
        self._spare: shard.Flats = []
        self._answers: dict[Kind, Callable[[frames.Head], None]] = {
            Kind.OPEN: self._open,
            Kind.SHARE: self._share,
            Kind.LOAD: self._load,
            Kind.PULL: self._pull,
            Kind.STEP: self._step,
            Kind.STATE: self._state,
            Kind.LOAD_STATE: self._load_state,
            Kind.MEET: self._meet,
            Kind.DONE: self._finish,
            Kind.BEGIN: self._begin,
            Kind.RESUME: self._resume,
            Kind.TAKE: self._take,
            Kind.WANTED: self._wanted,
            Kind.GIVE: self._give,
            Kind.LEAVE: self._leave,
            Kind.SKIP: self._skip,
        }

    def serve(self) -> None:
        """Answer requests until the connection ends."""
        try:
            while True:
                head = self._connection.head()
                answer = self._answers.get(head.kind)
                if answer is None:
                    raise frames.Refused(f"{head.kind.name} is not a request")
                answer(head)
        except frames.Refused as why:
            self._connection.send(Kind.ERROR, {"message": str(why)})
        except (KeyError, TypeError, ValueError, RuntimeError) as cause:
            sys.stderr.write(f"oarlock.train: a request of worker {self._place.rank} failed: {cause!r}\n")
            self._connection.send(Kind.ERROR, {"message": f"the request is not valid: {cause!r}"})
        finally:
            self._withdraw()
            self._server.lost(self._place, self._socket)

    def _open(self, head: frames.Head) -> None:
        _expect(head, 0)
        self._shard = self._server.opened(openings.read(head.fields))
        if not self._shard.opening.mode.fits(self._place):
            raise frames.Refused("the mode is for another number of workers")
        self._connection = self._socket
        self._buffers, self._spare = self._shard.buffers(by_row=False), []
        self._server.trains(self._place.rank)
        began = self._server.began_at is not None
        steps = self._shard.join(self._place.rank, shares.Told.of(head.fields, self._place.workers, began=began))
        self._life = self._shard.life(self._place.rank)
        self._answer(
            {
                "version": self._shard.version,
                "loaded": self._shard.loaded,
                "steps": steps,
                "taken": self._shard.taken(),
                "began_at": self._server.began_at,
                **self._shard.shares.news(head.fields),
                **self._offers(self._shard, head.fields.get("sees")),
            }
        )

    def _offers(self, held: shard.Shard, sees: object) -> dict[str, Any]:
        """Offer memory for the bodies, and that of the weights."""
        size = _shared_bytes(held.opening)
        segment = self._offered(size, sees)
        return {"segment": segment, "weights": held.offered(self._place.rank, None if segment is None else size)}

    def _offered(self, size: int, sees: object) -> dict[str, str] | None:
        """Offer memory for the bodies to a worker that sees the same /dev/shm."""
        self._withdraw()
        if size < bodies.LEAST_BYTES or not sees or sees != segments.place():
            return None
        try:
            self._offer = segments.Offer(size)
        except OSError:
            return None
        return {"name": self._offer.name, "secret": self._offer.secret}

    def _share(self, head: frames.Head) -> None:
        """Use the offered memory where the worker, which has looked at it, sees it and there is enough."""
        _expect(head, 0)
        offer = self._offer
        if offer is None:
            raise frames.Refused("no memory was offered")
        with_memory: bodies.Shared | None = None
        if head.fields["sees"] is True:
            with contextlib.suppress(OSError, ValueError):
                offer.reserve()
                with_memory = bodies.Shared(self._socket, offer.map())
                if not any(piece.by_row for piece in self._opened().opening.pieces):  # rows have no fixed places
                    self._buffers = with_memory.tensors(self._buffers)
        self._withdraw()
        sees_weights = with_memory is not None and head.fields.get("weights") is True
        self._opened().answered(self._place.rank, sees=sees_weights)
        self._answer({"bytes": 0 if with_memory is None else offer.size})
        self._connection = with_memory or self._socket

    def _withdraw(self) -> None:
        if self._offer is not None:
            self._offer.close()
        self._offer = None

    def _begin(self, head: frames.Head) -> None:
        _expect(head, 0)
        self._server.begin(_whole(head.fields["step"]))
        self._answer({})

    def _load(self, head: frames.Head) -> None:
        held = self._opened()
        _expect(head, held.opening.bytes)
        weights = self._weights(held)
        self._connection.body(held.views(weights))
        held.load(weights, _whole(head.fields["version"]), _settings(head))
        self._answer({})

    def _resume(self, head: frames.Head) -> None:
        """Take back a worker, after the server's restart, with the weights of its last answer or with none."""
        held = self._opened()
        began_at = head.fields["began_at"]
        if began_at is not None:
            self._server.begin(_whole(began_at))
        if head.body_bytes:
            _expect(head, held.opening.bytes)
            weights = self._weights(held)
            self._connection.body(held.views(weights))
            taken = {_whole(int(rank)): _whole(number) for rank, number in head.fields["taken"].items()}
            held.resume(weights, _whole(head.fields["version"]), _settings(head), taken)
        held.is_back(self._place.rank)
        self._answer({})

    def _pull(self, head: frames.Head) -> None:
        _expect(head, 0)
        held = self._opened()
        held.is_back(self._place.rank)  # one that asks for weights has none of its own to offer
        weights = self._weights(held)
        version, taken, shown = held.read(self._place.rank, weights)
        self._answer({"version": version, "taken": taken, "shown": shown}, () if shown else held.views(weights))

    def _step(self, head: frames.Head) -> None:
        held = self._opened()
        pieces = held.opening.pieces
        absent = frozenset(_whole(each) for each in head.fields["absent"])
        if any(each >= len(pieces) for each in absent):
            raise frames.Refused("a piece that is not here is absent")
        by_row = held.expected(head.fields.get("rows", {}), absent)
        there = (each.bytes for index, each in enumerate(pieces) if index not in absent and index not in by_row)
        _expect(head, sum(there) + sum(view.nbytes for each in by_row.values() for view in each.views()))
        received = self._buffers
        if absent or by_row:  # pieces are not in their places: the buffers may be the memory that they came by
            received = self._spare = self._spare or held.buffers(by_row=False)
            held.clear(received, absent)
        self._connection.body(held.views(received, absent, by_row))
        held.check(by_row)
        number = _whole(head.fields["number"])
        base, all_rows = _whole(head.fields["base"]), head.fields.get("all_rows") is True
        held.compare(self._place.rank, base, head.fields.get("skipped"), steps=True)
        push = shard.Push(base, received, absent, _settings(head), number, by_row, all_rows, self._life)
        version, taken, shown, changed = held.push(self._place.rank, push, self._buffers)
        wish = self._server.wished(_whole(head.fields["wish"]))
        fields: dict[str, Any] = {"version": version, "taken": taken, "wish": wish, "shown": shown}
        fields |= held.shares.news(head.fields) | held.paces.news(self._place.rank, head.fields)
        if changed:
            fields["rows"] = {str(index): len(each.numbers) for index, each in changed.items()}
        self._answer(fields, () if shown else held.views(self._buffers, by_row=changed))

    def _skip(self, head: frames.Head) -> None:
        _expect(head, 0)
        self._opened().compare(self._place.rank, _whole(head.fields["base"]), head.fields["skipped"], steps=False)
        self._answer({})

    def _state(self, head: frames.Head) -> None:
        _expect(head, 0)
        entries, tensors = self._opened().state()
        self._answer({"entries": entries}, [memory.view(each) for each in tensors])

    def _load_state(self, head: frames.Head) -> None:
        held = self._opened()
        entries = head.fields["entries"]
        tensors: list[torch.Tensor] = []
        most = _STATE_TIMES * held.opening.bytes + _STATE_BYTES
        if head.body_bytes > most:
            raise frames.Refused(f"{head.body_bytes} bytes of state, at most {most} are taken")
        left = head.body_bytes
        for _, _, dtype, shape, _ in entries:
            if dtype is not None:
                size = memory.TYPES[dtype].itemsize
                for side in shape:
                    size *= _whole(side)
                left -= size
                if left < 0:
                    break
                tensors.append(torch.empty(shape, dtype=memory.TYPES[dtype]))
        if left:
            raise frames.Refused("the state's entries have another length than its body")
        self._connection.body([memory.view(each) for each in tensors])
        held.load_state(entries, tensors)
        self._answer({})

    def _meet(self, head: frames.Head) -> None:
        if head.body_bytes > meeting.MOST_BODY_BYTES:
            raise frames.Refused(
                f"{head.body_bytes} bytes for an exchange, at most {meeting.MOST_BODY_BYTES} are taken"
            )
        value = bytearray(head.body_bytes)
        self._connection.body([memoryview(value)])
        if head.fields.get("again"):
            self._server.give(self._place.rank, _whole(head.fields["number"]), bytes(value))
            return
        values = self._server.meet(self._place.rank, _whole(head.fields["number"]), bytes(value))
        self._answer({"lengths": [len(each) for each in values]}, [memoryview(each) for each in values])

    def _take(self, head: frames.Head) -> None:
        _expect(head, 0)
        value = self._server.take(self._place.rank, _whole(head.fields["most"]), weights=head.fields["weights"] is True)
        self._answer({}, [memoryview(value)])

    def _wanted(self, head: frames.Head) -> None:
        _expect(head, 0)
        self._answer(self._server.wanted(self._place.rank))

    def _give(self, head: frames.Head) -> None:
        number = _whole(head.fields["number"])
        most = self._server.most(number)
        if head.body_bytes > most:
            raise frames.Refused(f"{head.body_bytes} bytes of a session's state, at most {most} are taken")
        value = bytearray(head.body_bytes)
        self._connection.body([memoryview(value)])
        self._server.hand_over(number, bytes(value), str(head.fields.get("refused") or ""))
        self._answer({})

    def _leave(self, head: frames.Head) -> None:
        _expect(head, 0)
        held = self._opened()
        if not held.opening.mode.elastic:
            raise frames.Refused("the workers do not come and go here")
        self._answer({"last": held.part(self._place.rank)} | held.shares.news(head.fields))

    def _finish(self, head: frames.Head) -> None:
        """Take note that the worker trains no more.

        It may ask for weights and state, and wait until the others are done too.
        """
        _expect(head, 0)
        self._server.finished(self._place.rank)
        self._server.wished(_whole(head.fields["wish"]))
        held = self._opened()
        held.leave(self._place.rank)
        if head.fields["wait"]:
            held.await_end()
        self._server.ended(held)
        self._answer({})

    def _weights(self, held: shard.Shard) -> shard.Flats:
        """Return memory for all weights, which is kept only where it has no tables."""
        return held.buffers() if any(piece.by_row for piece in held.opening.pieces) else self._buffers

    def _opened(self) -> shard.Shard:
        if self._shard is None:
            raise frames.Refused("the first request is OPEN")
        return self._shard

    def _answer(self, fields: dict[str, Any], body: Sequence[memoryview] = ()) -> None:
        self._connection.send(Kind.OK, fields, body)


def _shared_bytes(opening: openings.Opening) -> int:
    """Return the size of the memory for bodies. Rows of a large table are few."""
    by_row = sum(piece.bytes for piece in opening.pieces if piece.by_row)
    return opening.bytes - by_row + min(by_row, _ROWS_BYTES)


def _expect(head: frames.Head, body_bytes: int) -> None:
    if head.body_bytes != body_bytes:
        raise frames.Refused(f"a {head.kind.name} has {head.body_bytes} bytes here, not {body_bytes}")


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise frames.Refused(f"{value!r} is not a number of things")
    return value


def _settings(head: frames.Head) -> list[dict[str, Any]]:
    settings = head.fields["settings"]
    if not isinstance(settings, list) or not all(isinstance(each, dict) for each in settings):
        raise frames.Refused("the optimizer's settings are not a list of objects")
    return settings
