"""The requests of one worker's connection to a parameter server, and their answers.

Each body must have exactly the length that its kind has here, which is known before memory is taken.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from oarlock.train.servers.model import openings, rows, shares
from oarlock.train.servers.process import meeting, pushes, service, shard
from oarlock.train.servers.wire import bodies, frames, handshake, memory, transport
from oarlock.train.sharing import segments

_ROWS_BYTES = 16 << 20
_STATE_TIMES = 8
_STATE_BYTES = 1 << 20
"""An optimizer's state may have so many times the bytes of the weights, and so many more."""

Kind = frames.Kind
_OF_ANY_ROUND = {Kind.COMMIT, Kind.STATE}
"""The requests of a worker that ends a step of its round while others are in the next one."""


class Desk:
    """The requests of one worker's connection."""

    def __init__(self, served: service.Service, connection: transport.Tcp, place: handshake.Place) -> None:
        self._service, self._socket, self._place = served, connection, place
        self._connection: transport.Connection = connection
        self._offer: segments.Offer | None = None  # memory that the worker may share
        self._shard: shard.Shard | None = None
        self._life = 0
        self._buffers: pushes.Flats = []  # in the shared memory, where there is one
        self._spare: pushes.Flats = []
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
            Kind.COMMIT: self._commit,
        }

    def serve(self) -> None:
        """Answer requests until the connection ends."""
        try:
            while True:
                head = self._connection.head()
                answer = self._answers.get(head.kind)
                if answer is None:
                    raise frames.Refused(f"{head.kind.name} is not a request")
                if head.kind not in _OF_ANY_ROUND:
                    self._service.check(self._place)
                answer(head)
        except frames.Refused as why:
            self._connection.send(Kind.ERROR, frames.reason(why))
        except (KeyError, TypeError, ValueError, RuntimeError) as cause:
            sys.stderr.write(f"oarlock.train: a request of worker {self._place.rank} failed: {cause!r}\n")
            self._connection.send(Kind.ERROR, {"message": f"the request is not valid: {cause!r}"})
        finally:
            self._withdraw()
            self._service.lost(self._place, self._socket)

    def _open(self, head: frames.Head) -> None:
        _expect(head, 0)
        self._shard = self._service.opened(openings.read(head.fields))
        if not self._shard.opening.mode.fits(self._place):
            raise frames.Refused("the mode is for another number of workers")
        self._connection = self._socket
        self._buffers, self._spare = self._shard.layout.buffers(by_row=False), []
        self._service.trains(self._place)
        began_at = self._service.began_at
        told = shares.Told.of(head.fields, self._place.workers, began=began_at is not None)
        steps = self._shard.join(self._place.rank, told)
        self._life = self._place.round or self._shard.life(self._place.rank)
        self._answer(
            {
                "version": self._shard.version,
                "loaded": self._shard.loaded,
                "steps": steps,
                "taken": self._shard.taken(),
                "began_at": began_at,
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
        self._service.begin(_whole(head.fields["step"]))
        self._answer({})

    def _load(self, head: frames.Head) -> None:
        held = self._opened()
        _expect(head, held.opening.bytes)
        weights = self._weights(held)
        self._connection.body(held.layout.views(weights))
        held.load(weights, _whole(head.fields["version"]), _settings(head))
        self._answer({})

    def _resume(self, head: frames.Head) -> None:
        """Take back a worker, after the server's restart, with the weights of its last answer or with none."""
        held = self._opened()
        began_at = head.fields["began_at"]
        if began_at is not None:
            self._service.begin(_whole(began_at))
        if head.body_bytes:
            _expect(head, held.opening.bytes)
            weights = self._weights(held)
            self._connection.body(held.layout.views(weights))
            taken = {_whole(int(rank)): _whole(number) for rank, number in head.fields["taken"].items()}
            held.resume(weights, _whole(head.fields["version"]), _settings(head), taken)
        held.is_back(self._place.rank)
        self._answer({})

    def _pull(self, head: frames.Head) -> None:
        _expect(head, 0)
        held = self._opened()
        if "at_least" in head.fields:
            held.await_version(self._place.rank, _whole(head.fields["at_least"]))
        held.is_back(self._place.rank)  # one that asks for weights has none of its own to offer
        weights = self._weights(held)
        version, taken, shown = held.read(self._place.rank, weights)
        fields = {"version": version, "taken": taken, "shown": shown}
        self._answer(fields, () if shown else held.layout.views(weights))

    def _step(self, head: frames.Head) -> None:
        held = self._opened()
        pieces = held.opening.pieces
        absent = frozenset(_whole(each) for each in head.fields["absent"])
        if any(each >= len(pieces) for each in absent):
            raise frames.Refused("a piece that is not here is absent")
        by_row = held.layout.expected(head.fields.get("rows", {}), absent)
        there = (each.bytes for index, each in enumerate(pieces) if index not in absent and index not in by_row)
        _expect(head, sum(there) + sum(view.nbytes for each in by_row.values() for view in each.views()))
        received = self._buffers
        if absent or by_row:  # pieces are not in their places: the buffers may be the memory that they came by
            received = self._spare = self._spare or held.layout.buffers(by_row=False)
            held.layout.clear(received, absent)
        self._connection.body(held.layout.views(received, absent, by_row))
        held.layout.check(by_row)
        number = _whole(head.fields["number"])
        base, all_rows = _whole(head.fields["base"]), head.fields.get("all_rows") is True
        held.learn(head.fields.get("shares", ()))
        held.compare(self._place.rank, base, head.fields.get("skipped"), steps=True)
        hold = head.fields.get("hold") is True
        push = pushes.Push(base, received, absent, _settings(head), number, by_row, all_rows, self._life, hold)
        if held.measures(base):  # here, while others are still to come
            push.squared_norm = pushes.squared_norm(received, by_row.values())
        self._answer_update(head, held, *held.push(self._place.rank, push, self._buffers))

    def _commit(self, head: frames.Head) -> None:
        """Make the update for which each server has all gradients, unless another worker has asked for it before."""
        _expect(head, 0)
        held, base = self._opened(), _whole(head.fields["base"])
        all_rows = head.fields.get("all_rows") is True
        self._answer_update(head, held, *held.commit(self._place.rank, base, self._buffers, all_rows=all_rows))

    def _answer_update(
        self,
        head: frames.Head,
        held: shard.Shard,
        version: int,
        taken: dict[int, int],
        shown: bool,
        changed: dict[int, rows.Rows],
    ) -> None:
        wish = self._service.wished(_whole(head.fields["wish"]))
        fields: dict[str, Any] = {"version": version, "taken": taken, "wish": wish, "shown": shown}
        fields |= held.shares.news(head.fields) | held.paces.news(self._place.rank, head.fields)
        norms = held.norms
        if norms is not None and norms[0] > _whole(head.fields["base"]):
            fields["norms"] = norms
        if changed:
            fields["rows"] = {str(index): len(each.numbers) for index, each in changed.items()}
        self._answer(fields, () if shown else held.layout.views(self._buffers, by_row=changed))

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
            self._service.give(self._place, _whole(head.fields["number"]), bytes(value))
            return
        values = self._service.meet(self._place, _whole(head.fields["number"]), bytes(value))
        self._answer({"lengths": [len(each) for each in values]}, [memoryview(each) for each in values])

    def _take(self, head: frames.Head) -> None:
        _expect(head, 0)
        value = self._service.take(
            self._place.rank, _whole(head.fields["most"]), weights=head.fields["weights"] is True
        )
        self._answer({}, [memoryview(value)])

    def _wanted(self, head: frames.Head) -> None:
        _expect(head, 0)
        self._answer(self._service.wanted(self._place.rank))

    def _give(self, head: frames.Head) -> None:
        number = _whole(head.fields["number"])
        most = self._service.most(number)
        if head.body_bytes > most:
            raise frames.Refused(f"{head.body_bytes} bytes of a session's state, at most {most} are taken")
        value = bytearray(head.body_bytes)
        self._connection.body([memoryview(value)])
        self._service.hand_over(number, bytes(value), str(head.fields.get("refused") or ""))
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
        held = self._opened()
        self._service.finished(self._place, held)
        self._service.wished(_whole(head.fields["wish"]))
        if head.fields["wait"]:
            held.await_end()
        self._service.ended(held)
        self._answer({})

    def _weights(self, held: shard.Shard) -> pushes.Flats:
        """Return memory for all weights, which is kept only where it has no tables."""
        return held.layout.buffers() if any(piece.by_row for piece in held.opening.pieces) else self._buffers

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
