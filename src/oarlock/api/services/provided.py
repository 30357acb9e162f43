"""What the API is given by the composition root: ports, the clock, chance, and what the server knows about itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from oarlock.api.security import authentication, secretfiles
from oarlock.api.services import forecaster as forecaster_module
from oarlock.api.services import inbox as inbox_module
from oarlock.api.services import meters as meters_module
from oarlock.api.services import wakes as wakes_module
from oarlock.backends import backends
from oarlock.data import storage
from oarlock.data.checkpoints import checkpoints
from oarlock.spec import attempts, bodies, jobs, plans
from oarlock.store import stores


class Exec(Protocol):
    """The one thing that the API asks of a backend: `backends.Backend.exec`."""

    async def __call__(
        self, key: attempts.TaskKey, command: Sequence[str], *, tty: bool = False, rows: int = 24, columns: int = 80
    ) -> backends.ExecProcess: ...


class Secrets(Protocol):
    """Where the values of secrets lie. Read when a task registers, and kept nowhere; tried when a job is submitted."""

    def read(self, name: str, owner: str, *, admin: bool = False) -> str:
        """The value for a job of `owner`, who may be an administrator.

        Raises NotFound where they have none or others could read it, with how to mend that.
        """
        ...

    def listed(self, owner: str, *, admin: bool = False) -> list[bodies.SecretInfo]:
        """The secrets that jobs of `owner` may name."""
        ...

    def put(self, name: str, value: str | None, owner: str, sharing: secretfiles.Sharing) -> bodies.SecretInfo:
        """Write a user's secret, or the server's where `owner` is "", which is shared so."""
        ...

    def remove(self, name: str, owner: str) -> None:
        """Raises NotFound."""
        ...


class Checkpoints(Protocol):
    """Checkpoints that lie on this machine. `own` is the server's own place, in which each job has a directory."""

    @property
    def own(self) -> str | None: ...

    async def verify(self, path: str, manifest_sha256: str) -> checkpoints.Checkpoint:
        """Read every byte of the checkpoint at `path`, whose manifest has this digest (empty: any).

        Raises NotFound or InvalidInput, with the reason, where it does not hold.
        """
        ...

    async def gone(self, listed: Sequence[jobs.Checkpoint]) -> set[str]:
        """The paths of those that have been removed. One whose whole place is missing may come back: not those."""
        ...

    async def absent(self, listed: Sequence[jobs.Checkpoint]) -> set[str]:
        """The paths of those that cannot be had now, for whatever reason. One in an object store is not looked at."""
        ...

    async def hold(self, checkpoint: jobs.Checkpoint, job: str) -> str:
        """Give the new job `job` this checkpoint, read as a whole; its path there. Later changes do not touch it.

        Raises NotFound or InvalidInput where it does not hold.
        """
        ...

    async def drop(self, checkpoint: jobs.Checkpoint) -> None:
        """Undo `hold`. Again: nothing."""
        ...

    async def unwritable(self, place: str) -> str:
        """Why a task could not make a directory below `place`, a path of this machine; empty where it could."""
        ...

    async def forget(self, job: str) -> None:
        """Delete what the job kept in the server's own place."""
        ...


class Results(Protocol):
    """The server's own place for results and for the files of working directories."""

    async def forget(self, job: str) -> None:
        """Delete what the job stored there."""
        ...


class Health(Protocol):
    async def __call__(self) -> dict[str, str]:
        """What keeps the server from working, by part: empty when it is ready. Bounded in time."""
        ...


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What the server says of itself. `capabilities` are words of `oarlock.api.jobs.capabilities`."""

    version: str
    backend: str
    home: str
    url: str
    started_at: float
    local: bool = True
    capabilities: tuple[str, ...] = ()
    currency: str = ""


class Services(msgspec.Struct, kw_only=True, frozen=True):
    """Ports and facts. One for the life of an application; everything in it may be shared by all requests."""

    store: stores.Store
    logs: storage.Logs
    metrics: storage.Metrics
    blobs: storage.Blobs
    exec: Exec
    secrets: Secrets
    checkpoints: Checkpoints
    results: Results
    files: storage.JobFiles
    health: Health
    about: About
    task_secret: bytes
    clock: Callable[[], float]
    entropy: Callable[[int], bytes]
    shutdown: Callable[[], None]
    report: Callable[[str, Mapping[str, object]], None]
    wakes: wakes_module.Wakes
    inbox: inbox_module.Inbox
    meters: meters_module.Meters
    authenticator: authentication.Authenticator
    rules: plans.Rules = plans.Rules()  # by which the server schedules
    forecaster: forecaster_module.Forecaster = msgspec.field(default_factory=forecaster_module.Forecaster)
    snapshot_limit_bytes: int = 10 << 30
    hosts: frozenset[str] | None = None
    """The names by which the server may be addressed; None: any. On loopback they keep DNS rebinding out."""


def fresh_id(services: Services, now: float) -> str:
    """A job's id: 48 bits of milliseconds and 40 of chance in Crockford's base 32, so that ids sort by age."""
    number = int(now * 1000) << 40 | int.from_bytes(services.entropy(5), "big")
    digits = "0123456789abcdefghjkmnpqrstvwxyz"
    return "j-" + "".join(digits[number >> shift & 31] for shift in range(85, -1, -5))
