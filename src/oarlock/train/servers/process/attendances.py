"""The workers that are there: their connections and their exchanges, in one round where they come and go in rounds.

A worker that is new to a round may be there while the others end a step of the round before.
"""

from __future__ import annotations

from oarlock.train.servers.process import meeting
from oarlock.train.servers.wire import frames, handshake, transport


class Attendance:
    """The workers of one round, or of the attempt where it has no rounds. The server guards it against other threads,
    but for the meeting.
    """

    def __init__(self, first: handshake.Place) -> None:
        self.round, self.workers = first.round, first.workers
        self.meeting = meeting.Meeting(first.workers, frames.RoundOver if first.round else frames.Refused)
        self.done: set[int] = set()  # workers whose training is over
        self._newest: dict[tuple[int, str], transport.Tcp] = {}
        self._incarnations: dict[int, int] = {}  # the highest of each worker

    @property
    def there(self) -> set[int]:
        """The workers that have a connection."""
        return {rank for rank, _ in list(self._newest)}

    @property
    def ranks(self) -> set[int]:
        """All workers, the ones that are not there too."""
        return {*range(self.workers), *self._incarnations}

    def come(self, place: handshake.Place, connection: transport.Tcp) -> bool:
        """Make this the worker's connection. Drop those of a predecessor, which may live on unseen, and return whether
        it had any and was not done.
        """
        newest = self._incarnations.get(place.rank, place.incarnation)
        if place.incarnation < newest:
            raise frames.Refused(f"worker {place.rank} was replaced: this is incarnation {place.incarnation}")
        former = [each for each in self._newest if each[0] == place.rank and place.incarnation > newest]
        for each in former:
            self._newest.pop(each).close()
        self._incarnations[place.rank] = place.incarnation
        self._newest[place.rank, place.purpose] = connection
        return bool(former) and place.rank not in self.done

    def go(self, place: handshake.Place, connection: transport.Tcp) -> bool:
        """Forget a connection that broke. Return whether the worker is lost with it: not where it is done, or has come
        back by another connection.
        """
        if self._newest.get((place.rank, place.purpose)) is not connection:
            return False
        del self._newest[place.rank, place.purpose]
        # What a successor asked for may be gone with a connection that gives: no death of this worker.
        return place.purpose != "give" and place.rank not in self.done

    def end(self, why: str) -> None:
        """Fail all exchanges that are under way."""
        for rank in range(self.workers):
            self.meeting.lose(rank, why)
