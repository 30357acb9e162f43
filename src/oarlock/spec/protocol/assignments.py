"""The server's messages to the agent of a task. The wire format is docs/agent-protocol.md; these structs write it."""

from __future__ import annotations

import msgspec

from oarlock.spec import jobfile


class Upload(msgspec.Struct, frozen=True):
    source: str
    to: str


class Keep(msgspec.Struct, frozen=True):
    """Where the new and changed files of the working directory go (a URL), and how many of them."""

    to: str
    ignore: tuple[str, ...] = ()
    limit_bytes: int = 10 * 10**9
    limit_files: int = 10_000


class Copies(msgspec.Struct, frozen=True):
    """Where whole checkpoints are copied to (a URL), and how many of them stay there.

    `separate`: each task has a directory of its own, and stores the shards of its ranks.
    """

    to: str
    keep: int
    separate: bool = False


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """`assignment.json`, made by the guardian field by field and delivered by the backend.

    Carries no secret but the token.
    """

    key: str
    server: str
    token: str
    command: str | tuple[str, ...]
    server_file: str | None = None
    ca_file: str | None = None
    address: str = "127.0.0.1"
    address_variable: str | None = None
    exit_copy: str | None = None
    ports: tuple[int, ...] = ()
    snapshot: str | None = None
    downloads: tuple[jobfile.DataSource, ...] = ()
    uploads: Upload | None = None
    keep: Keep | None = None
    tensorboard: bool = False
    checkpoint_copies: Copies | None = None
    requirements: str | None = None
    environments: str | None = None
    secret_variables: dict[str, str] = {}  # of the agent, by the name of a secret whose value the platform gives to it
    helper: tuple[str, ...] = ()
    mailbox: str | None = None
    workdir: str | None = None
    nproc: int = 1
    env: dict[str, str] = {}
    path_env: dict[str, str] = {}
    grace_s: float = 30.0
    orphan_timeout_s: float | None = None
    spool_bytes: int = 1 << 30
    train_path: str | None = None
    hook_path: str | None = None
    cgroup: str | None = None
    oom_counter: str | None = None
    limit_mark: int | None = None
    gpus: tuple[int, ...] | None = None
    plugged_gpus: int = 0  # that the platform chooses, and the agent names
    freeze_s: float | None = None


class ProcessEnv(msgspec.Struct, frozen=True):
    env: dict[str, str]


class Rendezvous(msgspec.Struct, frozen=True, kw_only=True):
    """The message to each task once the gang has met.

    `oarlock.frameworks` makes it from the job and from every task's address and ports.
    """

    round: int
    lost: int = 0  # the newest round whose exchanges cannot end
    processes: tuple[ProcessEnv, ...]
    files: dict[str, str] = {}
    restore: tuple[str, ...] = ()


class Stop(msgspec.Struct, frozen=True):
    grace_s: float
    reason: str


class Batch(msgspec.Struct, frozen=True):
    local: int
    accumulate: int


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """The orders of a task's agent, derived from the job at every request; `version` is a digest of the rest."""

    version: str
    stop: Stop | None = None
    stacks: int | None = None
    round: int = 0
    release: bool = False
    batch: Batch | None = None
