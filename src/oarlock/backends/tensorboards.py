"""Interface to what runs TensorBoard beside a job: one for each job that asks for it.

The controller makes one when the job begins to run, and removes it with the end of its attempt. Nothing is kept here.
"""

from __future__ import annotations

from typing import Protocol

from oarlock.backends import backends
from oarlock.spec import errors, jobs


class TensorBoards(Protocol):
    @property
    def makes(self) -> bool:
        """Whether new ones can be made. Those of before are removed all the same."""
        ...

    async def there(self) -> dict[str, str]:
        """Return by job why its TensorBoard does not run yet; an empty text for one that runs."""
        ...

    async def make(self, job: jobs.Job) -> None:
        """Make the TensorBoard of this job. One that is there stays."""
        ...

    async def remove(self, job: str) -> None:
        """Remove the TensorBoard of this job. One that is gone counts as removed."""
        ...

    async def connect(self, job: str) -> backends.ExecProcess:
        """Return one connection to the TensorBoard: its input and `stdout` are the bytes. Raises NotFound, Conflict."""
        ...


class Memory:
    """TensorBoards in memory. A test sets the texts of `items`; `fails` is an error that the next call raises."""

    makes = True

    def __init__(self) -> None:
        self.items: dict[str, str] = {}
        self.fails: errors.OarlockError | None = None

    async def there(self) -> dict[str, str]:
        self._check()
        return dict(self.items)

    async def make(self, job: jobs.Job) -> None:
        self._check()
        self.items.setdefault(job.id, "it starts")

    async def remove(self, job: str) -> None:
        self._check()
        self.items.pop(job, None)

    async def connect(self, job: str) -> backends.ExecProcess:
        raise errors.NotFound(f"{job} has no TensorBoard", hint="This one is a stand-in.")

    def _check(self) -> None:
        failure, self.fails = self.fails, None
        if failure is not None:
            raise failure
