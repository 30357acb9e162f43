"""The service of a parameter server: who is there, the shard of the model, and the exchanges of the workers.

Desks (desks.py) call it, a thread for each connection. `lock` guards all that the methods change.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from pathlib import Path
from typing import Any

import torch

from oarlock.train.servers.model import openings
from oarlock.train.servers.process import attendances, handover, shard, snapshots, standby
from oarlock.train.servers.wire import frames, handshake, transport

SUCCESSOR_S = 600.0
"""For so long the workers wait in their step for the successor of one that died."""


class Service:
    """The service to the workers of one attempt."""

    def __init__(
        self, device: torch.device | str = "cpu", snapshot: Path | None = None, kept: Path | None = None
    ) -> None:
        self.lock = threading.Lock()
        self.closing = False
        self._path, self._kept = snapshot, kept
        self._snapshots: snapshots.Snapshots | None = None
        self._standby: standby.Standby | None = None
        self._device = torch.device(device)
        self._shard: shard.Shard | None = None
        self._attendances: dict[int, attendances.Attendance] = {}  # by the round
        self._wish = 0
        self._missing: dict[int, threading.Timer] = {}  # dead workers; the others wait for their successors
        self._over = ""  # why no worker is served any more
        self._round = 0  # that of the workers that step, where they come and go in rounds
        self._handover = handover.Handover()
        # The step at which training began, after the workers had met. A newcomer does not meet, so it must know even
        # where it is the first to come to a server that took the place of a dead one.
        self.began_at = snapshots.beginning(snapshot) if snapshot is not None else None

    def close(self) -> None:
        """Wait for nothing and write nothing any more. The connections stay, until `lose_all`."""
        with self.lock:
            self.closing = True
            for timer in self._missing.values():
                timer.cancel()
        if self._snapshots is not None:
            self._snapshots.close()
        if self._shard is not None:
            self._shard.hide()
        if self._standby is not None:
            self._standby.close()

    def forget(self) -> None:
        """Remove what is kept for a successor on this host: none comes. It takes no lock: a signal calls it."""
        if self._standby is not None:
            self._standby.unname()
        elif self._kept is not None:
            standby.remove(self._kept)

    def lose_all(self) -> None:
        """End the requests that wait for others, once all connections are broken: no worker hears of these losses."""
        with self.lock:
            for attendance in self._attendances.values():
                for rank in attendance.ranks:
                    self._lose(attendance, rank)

    def come(self, place: handshake.Place, connection: transport.Tcp) -> bool:
        """Let a worker in. Return whether the others train already. Raises Refused where it may not."""
        with self.lock:
            if self._over:
                raise frames.Refused(self._over)
            self.check(place)
            attendance = self._attendances.setdefault(place.round, attendances.Attendance(place))
            if attendance.workers != place.workers and not place.elastic:
                raise frames.Refused(f"{place.workers} workers, but {attendance.workers} are expected")
            if attendance.come(place, connection):
                self._lose(attendance, place.rank)
            if place.purpose == "step" and place.round > self._round:
                self._begin_round(attendance)
            if self._over:
                raise frames.Refused(self._over)
            return self.began_at is not None

    def check(self, place: handshake.Place) -> None:
        """Raise RoundOver for a worker of an earlier round."""
        if place.round < self._round:
            raise frames.RoundOver(f"round {place.round} is over, and round {self._round} has begun")

    def _begin_round(self, attendance: attendances.Attendance) -> None:
        """Go on with the workers of a later round. All of them have met in it before the first one steps, so none of
        them is in a step of the round before.
        """
        self._round = attendance.round
        for number in [each for each in self._attendances if each < self._round]:
            self._attendances.pop(number).end(f"round {self._round} has begun")
        if self._shard is not None:
            self._shard.begin_round(self._round, attendance.workers)

    def opened(self, opening: openings.Opening) -> shard.Shard:
        """Return the shard; the first worker makes it. Raises Refused where another one has told something else."""
        with self.lock:
            if self._shard is None:
                self._shard = self._made(opening)
            if self._shard.opening != opening:
                raise frames.Refused("the workers have different models, optimizers or modes")
            return self._shard

    def _made(self, opening: openings.Opening) -> shard.Shard:
        """Return the shard, from the server's own checkpoint where the attempt has one."""
        made = shard.Shard(opening, self._device)
        self._restore(made)
        if opening.mode.rounds:
            made.begin_round(self._round, self._attendances[self._round].workers)
        return made

    def _restore(self, made: shard.Shard) -> None:
        """Take the state of a predecessor: that in the memory of this host, or that of its checkpoint."""
        opening = hashlib.sha256(json.dumps(made.opening.fields()).encode()).hexdigest()
        found = [standby.read(self._kept) if self._kept is not None else None]
        found.append(snapshots.read(self._path) if self._path is not None else None)
        ours = [saved for saved in found if saved is not None and saved["opening"] == opening]
        if ours:
            made.restore(max(ours, key=lambda saved: int(saved["version"])))
            sys.stderr.write(f"oarlock.train: parameter server restored at version {made.version}\n")
        if self._kept is not None and standby.fits(made.opening, self._device):
            self._standby = standby.Standby(self._kept, opening)
            made.keep(self._standby)
        if self._path is not None:
            self._snapshots = snapshots.Snapshots(self._path, made, {"opening": opening})

    def ended(self, held: shard.Shard) -> None:
        """Forget the server's own checkpoint, and what a successor would need, once no worker trains any more."""
        with self.lock:
            over = held.is_over()
            if over and held.opening.mode.lockstep:
                self.began_at = None
            if over and self._path is not None:
                snapshots.remove(self._path)
            if over:
                held.let_go()

    def begin(self, step: int) -> None:
        """Begin the training, with the step after this one."""
        with self.lock:
            if self._path is not None and self.began_at != step:
                snapshots.note_beginning(self._path, step)
            self.began_at = step

    def give(self, place: handshake.Place, number: int, value: bytes) -> None:
        self._of_round(place).meeting.give(place.rank, number, value)

    def meet(self, place: handshake.Place, number: int, value: bytes) -> list[bytes]:
        return self._of_round(place).meeting.meet(place.rank, number, value)

    def _of_round(self, place: handshake.Place) -> attendances.Attendance:
        found = self._attendances.get(place.round)
        self.check(place)
        assert found is not None
        return found

    def take(self, rank: int, most: int, *, weights: bool) -> bytes:
        """Return the state of another worker's session, for the successor of one that died."""
        there = self._attendances[self._round]
        return self._handover.take(rank, most, weights=weights, there=lambda: there.there)

    def wanted(self, rank: int) -> dict[str, Any]:
        with self.lock:
            return {**self._handover.wanted(rank), "missing": bool(self._missing)}

    def most(self, number: int) -> int:
        return self._handover.most(number)

    def hand_over(self, number: int, value: bytes, refused: str) -> None:
        self._handover.give(number, value, refused)

    def trains(self, place: handshake.Place) -> None:
        with self.lock:
            self._of_round(place).done.discard(place.rank)
            timer = self._missing.pop(place.rank, None)
        if timer is not None:
            timer.cancel()

    def finished(self, place: handshake.Place, held: shard.Shard) -> None:
        """Take note that the others need not wait for this worker any more."""
        with self.lock:  # no round begins meanwhile, in which the rank is that of another worker
            self._of_round(place).done.add(place.rank)
            held.leave(place.rank)

    def wished(self, wish: int) -> int:
        """Return the strongest wish to stop that any worker has told."""
        with self.lock:
            self._wish = max(self._wish, wish)
            return self._wish

    def lost(self, place: handshake.Place, connection: transport.Tcp) -> None:
        """Take note that a worker's connection broke.

        The others need not wait for it any more, unless its training was over or it has come back by another
        connection.
        """
        with self.lock:  # so that it does not come back in between
            attendance = self._attendances.get(place.round)
            if attendance is not None and attendance.go(place, connection) and not self.closing:
                self._lose(attendance, place.rank)
            self._handover.look()

    def _lose(self, attendance: attendances.Attendance, rank: int) -> None:
        """Fail the steps and exchanges that lack this worker, or let the others wait for its successor."""
        why = f"worker {rank} is gone: Connection closed by peer"
        if self._awaits_successors():
            assert self._shard is not None
            self._shard.await_successor(rank)
            if rank not in self._missing:
                timer = threading.Timer(SUCCESSOR_S, self._give_up, (attendance, rank))
                timer.daemon = True
                timer.start()
                self._missing[rank] = timer
            if len(self._missing) == self._shard.opening.mode.workers:
                self._end_attempt(attendance)
        else:
            self._fail(attendance, rank, why)

    def _awaits_successors(self) -> bool:
        """Return whether the others wait for the successor of a worker that dies: in lockstep, once they have begun."""
        if self._shard is None or self.began_at is None or self.closing:
            return False
        return self._shard.opening.mode.lockstep and self._shard.opening.mode.workers > 1

    def _give_up(self, attendance: attendances.Attendance, rank: int) -> None:
        with self.lock:
            if self._missing.get(rank) is threading.current_thread():
                why = f"worker {rank} is gone, and no other came in its place: Connection closed by peer"
                self._fail(attendance, rank, why)

    def _fail(self, attendance: attendances.Attendance, rank: int, why: str) -> None:
        attendance.meeting.lose(rank, why)
        if self._shard is not None and attendance.round == self._round:
            self._shard.leave(rank, failed=why)

    def _end_attempt(self, attendance: attendances.Attendance) -> None:
        """Refuse all workers from now on, because none is left that could tell a successor its state."""
        if not self._over:
            self._over = "all workers are gone: a restart begins at the newest checkpoint"
            sys.stderr.write(f"oarlock.train: {self._over}\n")
        for rank, timer in self._missing.items():
            timer.cancel()
            self._fail(attendance, rank, self._over)  # threads may still wait for them
