"""Interface to what runs TensorBoard beside a job: one for each attempt of a job that asks for it.

The controller makes one when the attempt begins, and removes it with the attempt. Nothing is kept here.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from oarlock.backends import backends
from oarlock.spec import errors, jobs

Key = tuple[str, int]
"""A job, and the number of its attempt."""


class Board(msgspec.Struct, frozen=True, kw_only=True):
    """One TensorBoard that is there. `reason` says why it does not run yet, and is empty where it runs.

    One that is not `good` has ended, or goes away, or reaches the server no more: it is removed, and another one made.
    """

    job: str
    attempt: int
    uid: str
    name: str = ""
    reason: str = ""
    good: bool = True

    @property
    def key(self) -> Key:
        return self.job, self.attempt


class TensorBoards(Protocol):
    @property
    def makes(self) -> bool:
        """Whether new ones can be made. Those of before are removed all the same."""
        ...

    async def there(self) -> list[Board]:
        """Return all that are there, in whatever state."""
        ...

    async def of(self, job: jobs.Job) -> Board | None:
        """Return the TensorBoard of the job's living attempt, if it is there."""
        ...

    async def make(self, job: jobs.Job, still: backends.Still) -> str:
        """Make what is not there of the TensorBoard of the job's living attempt. Return its UID.

        Return an empty text where one that is not good has its name. Raises StaleEpoch where `still` says no.
        """
        ...

    async def remove(self, board: Board, still: backends.Still) -> None:
        """Remove this very TensorBoard. One that is gone counts as removed. Raises StaleEpoch where `still` says no."""
        ...

    async def connect(self, job: jobs.Job) -> backends.ExecProcess:
        """Return one connection to the TensorBoard: its input and `stdout` are the bytes. Raises NotFound, Conflict."""
        ...


class Memory:
    """TensorBoards in memory. A test changes `items`; `fails` is an error that the next call raises."""

    makes = True

    def __init__(self) -> None:
        self.items: dict[Key, Board] = {}
        self.fails: errors.OarlockError | None = None
        self._made = 0

    def put(self, job: str, attempt: int = 1, reason: str = "", *, good: bool = True) -> Board:
        self._made += 1
        board = Board(job=job, attempt=attempt, uid=f"u-{self._made}", reason=reason, good=good)
        self.items[job, attempt] = board
        return board

    async def there(self) -> list[Board]:
        self._check()
        return list(self.items.values())

    async def of(self, job: jobs.Job) -> Board | None:
        self._check()
        return self.items.get((job.id, job.live.number)) if job.live is not None else None

    async def make(self, job: jobs.Job, still: backends.Still) -> str:
        self._check()
        backends.check(still)
        assert job.live is not None
        found = self.items.get((job.id, job.live.number)) or self.put(job.id, job.live.number, "it starts")
        return found.uid if found.good else ""

    async def remove(self, board: Board, still: backends.Still) -> None:
        self._check()
        backends.check(still)
        if (found := self.items.get(board.key)) is not None and found.uid == board.uid:
            del self.items[board.key]

    async def connect(self, job: jobs.Job) -> backends.ExecProcess:
        raise errors.NotFound(f"{job.name} has no TensorBoard", hint="This one is a stand-in.")

    def _check(self) -> None:
        failure, self.fails = self.fails, None
        if failure is not None:
            raise failure
