"""The job file as its author wrote it, in the author's units.

These structs are the whole contract. They decode job files (YAML), requests (JSON) and flags alike, and the JSON Schema
in `/openapi.json` is made from them. A quantity stays the text that was written (`2Gi`, `10m`);
`spec.input.quantities` turns it into bytes and seconds, and `spec.input.validation` refuses contradictions.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

from oarlock.spec import roles

MAX_NAME_LENGTH = 63
MAX_TASKS = 10_000
MAX_NPROC = 128
DEFAULT_CPUS = 1
MAX_LEFT_OUT = 50
MAX_LEFT_OUT_CHARACTERS = 300
MAX_PATTERNS = 100
MAX_PATTERN_CHARACTERS = 500
MAX_KEPT_FILES = 1_000_000
MAX_STALENESS = 10_000
TUNED = "tuned"  # for `bucket_bytes`: the best of some sizes that are measured in the first steps
MAX_TEXT_BYTES = 64 * 1024
"""The most bytes in a command, an environment value or any other free text of a job file."""


class Placement(StrEnum):
    PACK = "pack"
    SPREAD = "spread"


class Domain(StrEnum):
    """A level of the topology within which a gang may be asked to lie."""

    NODE = "node"
    NVLINK = "nvlink"
    RACK = "rack"
    ZONE = "zone"


class SecretForm(StrEnum):
    ENV = "env"  # a variable: `hub-token` becomes HUB_TOKEN
    FILE = "file"  # a file only the task can read; HUB_TOKEN_FILE names it


class StrategyKind(StrEnum):
    AUTO = "auto"  # the library measures and chooses among the lossless ones
    ALLREDUCE = "allreduce"
    PS = "ps"
    NONE = "none"


class Compression(StrEnum):
    AUTO = "auto"  # the library measures and chooses, lossy ones included
    NONE = "none"
    FP16 = "fp16"
    BF16 = "bf16"
    POWERSGD = "powersgd"
    DGC = "dgc"


UNGROUPED = (StrategyKind.PS, Compression.POWERSGD, Compression.DGC)
"""The exchanges whose gradients do not travel in groups."""


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of the job file: unknown fields are errors, defaults are not written out."""


class Role(Part, frozen=True):
    """The tasks of one role. A task takes `cpus`, `memory` and `gpus` for all its `nproc` processes together.

    Given amounts are held for the task, and are its limit. Without `cpus` one core is held, and idle cores may be used.
    """

    count: int = 1
    min: int | None = None  # else count: the gang
    max: int | None = None  # else count: the extras end here
    nproc: int = 1
    cpus: float | str | None = None
    memory: str | int | None = None
    gpus: float = 0
    gpu_type: tuple[str, ...] | str = ()  # in order of preference
    gpu_memory: str | int | None = None
    mixed: bool = False  # GPUs of several of these types at once will do
    on_success: roles.OnSuccess | None = None  # else by framework and role
    on_failure: roles.OnFailure | None = None

    @property
    def held_cpus(self) -> float | str:
        return DEFAULT_CPUS if self.cpus is None else self.cpus


class Strategy(Part, frozen=True):
    """How `oarlock.train` exchanges gradients. A field that is set overrides the script."""

    kind: StrategyKind | None = None
    compression: Compression | None = None
    bucket_bytes: int | str | None = None  # the size of the groups in which gradients travel, or TUNED
    sync: bool | None = None  # parameter servers: whether all workers step together
    staleness: int | None = None  # the most steps by which the fastest worker is ahead of the slowest
    backup: int | None = None  # so many of the slowest gradients of a step are not waited for


class Bounds(NamedTuple):
    """The bounds of a batch size on one type of GPU, as `Batch` has them."""

    size: int
    max: int
    local_min: int = 1
    local_max: int | None = None


class Batch(Part, frozen=True):
    """The batch size of the whole gang, in examples, where the scheduler may choose it.

    `size` is the batch size of the learning rate, and the minimum; `max` the largest with which the model still learns;
    `local_min` to `local_max` bound one process at once (its memory), larger batches are accumulated. `local_max` is a
    number, or one for each type of GPU: `{t4: 32, a100: 128}`; types without a number get the smallest of them.
    """

    size: int
    max: int | None = None  # else `size`: fixed
    local_min: int = 1
    local_max: int | dict[str, int] | None = None

    def on(self, gpu_type: str) -> Bounds:
        """Return the bounds that hold on `gpu_type` (empty: on any)."""
        most = self.local_max
        if isinstance(most, dict):
            most = most.get(gpu_type, min(most.values()))
        return Bounds(self.size, self.max or self.size, self.local_min, most)


class PsPlacement(StrEnum):
    """Placement of the parameter servers."""

    BESIDE = "beside"  # on the nodes of the workers
    APART = "apart"  # on nodes without a worker of this job


class DataSource(Part, frozen=True):
    source: str
    mount: str


class Volume(Part, frozen=True):
    claim: str
    mount: str
    read_only: bool = False


class Secret(Part, frozen=True):
    name: str
    form: SecretForm = msgspec.field(default=SecretForm.ENV, name="as")


class Checkpoint(Part, frozen=True):
    to: str | None = None  # else the server's own place
    every: str | float | None = None  # seconds, or `10m`
    keep: int = 3


class Files(Part, frozen=True):
    """The files in a task's working directory: whether they are kept, and which and how many of them.

    `ignore` has patterns as in .gitignore; `limit` and `count` bound the kept files of each task.
    """

    keep: bool = True
    ignore: tuple[str, ...] = ()
    limit: str | int = "10G"
    count: int = 10_000


class Topology(Part, frozen=True):
    same: Domain
    required: bool = False


class JobSpec(Part, frozen=True):
    """A job as submitted. Only `command` is required."""

    command: str | tuple[str, ...]
    name: str | None = None
    pool: str = "default"
    framework: roles.Framework = roles.Framework.TORCH
    image: str | None = None
    dependencies: str | None = None
    size: str | None = None
    roles: dict[roles.RoleName, Role] = msgspec.field(default_factory=lambda: {roles.RoleName.WORKER: Role()})
    strategy: Strategy = Strategy()
    data: tuple[DataSource, ...] = ()
    volumes: tuple[Volume, ...] = ()
    secrets: tuple[Secret, ...] = ()
    results: str | None = None
    files: Files = Files()
    checkpoint: Checkpoint = Checkpoint()
    priority: int = 50
    preemptible: bool = True
    max_restarts: int = 3
    timeout: str | float | None = None
    start_timeout: str | float = "10m"
    grace: str | float = "30s"
    hang_timeout: str | float | None = None
    freeze: str | float | None = None
    placement: Placement = Placement.PACK
    topology: Topology | None = None
    ps_placement: PsPlacement | None = None  # of parameter servers, in relation to workers
    batch: Batch | None = None
    env: dict[str, str] = {}
    tensorboard: bool = False


def runs_servers(spec: JobSpec) -> bool:
    """Return whether the tasks of its role `ps` run the training library's parameter server, and not the command.

    Those of a torch job do, whatever the strategy: the script would train a second model there, as rank 0 of 1. Other
    frameworks have servers of their own, which the command starts.
    """
    return spec.framework is roles.Framework.TORCH and roles.RoleName.PS in spec.roles


def serves(spec: JobSpec) -> bool:
    """Return whether its workers may train by way of the library's parameter servers. Where the job file names no kind
    of strategy, the script does, and else it is `auto`.
    """
    kind = spec.strategy.kind
    if kind is None:
        return runs_servers(spec)
    return kind is StrategyKind.PS or (kind is StrategyKind.AUTO and roles.RoleName.PS in spec.roles)


def may_do_without(spec: JobSpec) -> bool:
    """Return whether its workers may also train without the parameter servers: the script or the library decides."""
    return serves(spec) and spec.strategy.kind is not StrategyKind.PS


def rejoins(spec: JobSpec) -> bool:
    """Return whether its workers may come and go within an attempt, where the training library can do so.

    The job file asks for it: a role `worker` with `on_failure: restart`. With parameter servers it must be elastic, and
    say too that the workers step together, each of them, because a script may decide otherwise: `kind: ps` and
    `sync: true` without `backup`.
    """
    asked = spec.strategy
    together = asked.kind is StrategyKind.PS and asked.sync is True and not asked.backup
    return waits(spec) or ((together or not serves(spec)) and _asks_for(spec, roles.OnFailure.RESTART))


def waits(spec: JobSpec) -> bool:
    """Return whether its workers go on in the same attempt without one that is lost, but only wait for its successor:
    the job has a fixed size, and makes no step with fewer of them. With parameter servers the workers wait there.
    """
    workers = spec.roles.get(roles.RoleName.WORKER)
    if workers is None or spec.framework is not roles.Framework.TORCH or serves(spec):
        return False
    others = workers.count > 1 or roles.RoleName.CHIEF in spec.roles
    return others and not _is_elastic(workers) and workers.on_failure is roles.OnFailure.RESTART


def reshapes(spec: JobSpec) -> bool:
    """Return whether the scheduler may add and take away workers within an attempt, where the training library can.

    With parameter servers it may also if no worker waits for all others: `kind: ps` and `sync: false`, or `backup`.
    """
    return rejoins(spec) or numbered(spec)


def numbered(spec: JobSpec) -> bool:
    """Return whether its workers come and go under parameter servers without waiting for all others: each keeps a
    number, and one that fails is replaced by its next incarnation.

    With `backup` the job file must ask for it, as in `rejoins`: the size of a step follows the number of workers.
    """
    asked = spec.strategy
    if asked.kind is not StrategyKind.PS:
        return False
    if asked.backup:
        return _asks_for(spec, roles.OnFailure.RESTART)
    return asked.sync is False and _asks_for(spec, roles.OnFailure.RESTART, None)


def _asks_for(spec: JobSpec, *on_failure: roles.OnFailure | None) -> bool:
    """Return whether the number of its workers may change, and their `on_failure` is one of these."""
    workers = spec.roles.get(roles.RoleName.WORKER)
    if workers is None or spec.framework is not roles.Framework.TORCH:
        return False
    return _is_elastic(workers) and workers.on_failure in on_failure


def _is_elastic(workers: Role) -> bool:
    return (workers.min or workers.count) < (workers.max or workers.count)


class InPlace(Part, frozen=True):
    """The directory in which the job is to run, in the place of copies of it, and how it is known again.

    `machine` is the boot id of the machine that names it, `user` the number of its user there, `device` and `inode` the
    directory's numbers.
    """

    directory: str
    machine: str
    user: int
    device: int
    inode: int


class LeftOut(Part, frozen=True):
    """A file, or a folder (its path ends in `/`), of the working directory that is not in the snapshot, and why."""

    path: str
    why: str


class Submission(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of `POST /api/v1/jobs`.

    `snapshot` is the digest of an uploaded code snapshot, or None where the job needs no code. `shell` carries the
    submitting shell's PATH, VIRTUAL_ENV and the like, which only a local backend uses, so that `python` means the same
    program in the job. With `in_place` the job runs in that directory; the snapshot then only records the code.
    `left_out` lists the files that the snapshot lacks, so that a failure can name them. `sent_from` is the directory of
    the code. `continues` is `JOB` or `JOB@STEP`: the job begins from that checkpoint of another job.
    """

    spec: JobSpec
    snapshot: str | None = None
    sent_from: str = ""
    continues: str | None = None
    shell: dict[str, str] = {}
    in_place: InPlace | None = None
    left_out: tuple[LeftOut, ...] = ()
