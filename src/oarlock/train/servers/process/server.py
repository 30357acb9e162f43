"""The parameter server: a thread for each connection, one shard of the model, and no code of the user.

A connection is let in by the handshake alone. Before that it may send a few kilobytes and has ten seconds; at most
MOST_STRANGERS such connections are open at once. After that a desk answers its requests (desks.py).
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

from oarlock.train.servers.model import openings
from oarlock.train.servers.process import desks, handover, meeting, shard, snapshots
from oarlock.train.servers.wire import frames, handshake, transport

GREETING_S = 10.0
MOST_STRANGERS = 64
SUCCESSOR_S = 600.0
"""For so long the workers wait in their step for the successor of one that died."""
_AGAIN_S = 1.0

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
                    desks.Desk(self, connection, place).serve()
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
