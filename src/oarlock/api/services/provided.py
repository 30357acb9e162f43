"""Objects and facts that the composition root provides to the API: ports, clock, randomness, facts about the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from oarlock.api.security import authentication, secretfiles

# Names, not modules: the fields below bear the modules' names.
from oarlock.api.services.forecaster import Forecaster
from oarlock.api.services.inbox import Inbox
from oarlock.api.services.meters import Meters
from oarlock.api.services.turns import Turns
from oarlock.api.services.wakes import Wakes
from oarlock.backends import backends
from oarlock.backends.tensorboards import TensorBoards
from oarlock.data import storage
from oarlock.data.checkpoints import checkpoints, signing
from oarlock.spec import attempts, bodies, jobs, plans
from oarlock.store import stores


class Exec(Protocol):
    """Execution of a command in a task: `backends.Backend.exec`, the only method of a backend that handlers call."""

    async def __call__(
        self, key: attempts.TaskKey, command: Sequence[str], *, tty: bool = False, rows: int = 24, columns: int = 80
    ) -> backends.ExecProcess: ...


class Secrets(Protocol):
    """Storage of secrets. The API reads a value to check a submission or register a task, and does not keep it."""

    def read(self, name: str, owner: str, *, admin: bool = False) -> secretfiles.Found:
        """Return the secret for a job of `owner`; `admin` tells whether the owner is an administrator.

        Raises NotFound where there is none for the owner, or where other users of the machine can read the file.
        """
        ...

    def listed(self, owner: str, *, admin: bool = False) -> list[bodies.SecretInfo]:
        """Return the secrets that jobs of `owner` may name."""
        ...

    def put(
        self, name: str, told: secretfiles.Found | None, owner: str, sharing: secretfiles.Sharing
    ) -> bodies.SecretInfo:
        """Write a secret of a user; an empty `owner` means a secret of the server, shared with `sharing`."""
        ...

    def remove(self, name: str, owner: str) -> None:
        """Delete a secret. Raises NotFound."""
        ...


class Checkpoints(Protocol):
    """Checkpoints on this machine, or on a volume of the tasks. `own` is the server's own directory, with a directory
    for each job, as tasks see it. `visible` tells whether the server sees it too. `objects` is the server's own place
    in an object store, if it has one, and `stored` its name in the paths of checkpoints.
    """

    visible: bool

    @property
    def objects(self) -> signing.SignedObjects | None: ...

    @property
    def stored(self) -> str | None: ...

    @property
    def own(self) -> str | None: ...

    async def verify(self, path: str, manifest_sha256: str) -> checkpoints.Checkpoint:
        """Read and verify the whole checkpoint at `path`. An empty `manifest_sha256` accepts any manifest.

        Raises NotFound or InvalidInput with the reason where the checkpoint is not valid.
        """
        ...

    async def gone(self, listed: Sequence[jobs.Checkpoint]) -> set[str]:
        """Return the paths of removed checkpoints. A missing parent directory may be unmounted, and does not count."""
        ...

    async def absent(self, listed: Sequence[jobs.Checkpoint]) -> set[str]:
        """Return the paths that cannot be read now, for any reason. Checkpoints in object stores are not checked."""
        ...

    async def hold(self, checkpoint: jobs.Checkpoint, job: str) -> str:
        """Give the new job `job` a verified copy of the checkpoint, which stays when the source goes; return its path.

        Raises NotFound or InvalidInput where the checkpoint is not valid.
        """
        ...

    async def drop(self, checkpoint: jobs.Checkpoint) -> None:
        """Undo `hold`. A second call does nothing."""
        ...

    async def unwritable(self, place: str) -> str:
        """Return why a task cannot make a directory below `place`, or an empty text where it can."""
        ...

    async def forget(self, job: str) -> None:
        """Delete the job's checkpoints in the server's own directory."""
        ...


class Results(Protocol):
    """The server's own directories of results and of files from working directories."""

    async def forget(self, job: str) -> None:
        """Delete the job's files there."""
        ...


class Health(Protocol):
    """Health of the server's parts."""

    async def __call__(self) -> dict[str, str]:
        """Return the problems by part; none means ready. The answer comes within a few seconds."""
        ...


class Examine(Protocol):
    """The programs of the machine that jobs run on."""

    async def __call__(self) -> bodies.Programs | None:
        """Return what was read last; None until something was."""
        ...


class About(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the server. `capabilities` are words of `oarlock.api.jobs.capabilities`."""

    version: str
    backend: str
    home: str
    url: str
    started_at: float
    local: bool = True
    capabilities: tuple[str, ...] = ()
    currency: str = ""


class Services(msgspec.Struct, kw_only=True, frozen=True):
    """The ports and facts of one application. All requests share them."""

    store: stores.Store
    logs: storage.Logs
    metrics: storage.Metrics
    blobs: storage.Blobs
    exec: Exec
    secrets: Secrets
    checkpoints: Checkpoints
    results: Results
    files: storage.JobFiles
    received: storage.ReceivedFiles
    health: Health
    about: About
    image: str | None = None  # the server's own, where tasks run in images
    task_secret: bytes
    clock: Callable[[], float]
    entropy: Callable[[int], bytes]
    shutdown: Callable[[], None]
    report: Callable[[str, Mapping[str, object]], None]
    wakes: Wakes
    inbox: Inbox
    meters: Meters
    authenticator: authentication.Authenticator
    turns: Turns = msgspec.field(default_factory=Turns)
    forecast_turns: Turns = msgspec.field(default_factory=lambda: Turns("forecasts"))
    simulation_turns: Turns = msgspec.field(default_factory=lambda: Turns("simulations"))
    rules: Callable[[], plans.Rules] = plans.Rules  # the present ones of the scheduler
    manifests: Callable[[jobs.Job], Awaitable[list[dict[str, Any]]]] | None = (
        None  # of a job's pods; None without a cluster
    )
    tensorboards: TensorBoards | None = None  # beside jobs; None where the backend runs none
    forecaster: Forecaster = msgspec.field(default_factory=Forecaster)
    examine: Examine | None = None  # None where jobs run elsewhere
    snapshot_limit_bytes: int = 10 << 30
    settings: Mapping[str, str] = msgspec.field(default_factory=dict)  # as administrators see them, without secrets
    hosts: frozenset[str] | None = None
    """Host names that requests may use; None allows all. On loopback this prevents DNS rebinding."""


def fresh_id(services: Services, now: float) -> str:
    """Return a job id: 48 bits of milliseconds and 40 random bits in Crockford's base 32, so that ids sort by age."""
    number = int(now * 1000) << 40 | int.from_bytes(services.entropy(5), "big")
    digits = "0123456789abcdefghjkmnpqrstvwxyz"
    return "j-" + "".join(digits[number >> shift & 31] for shift in range(85, -1, -5))
