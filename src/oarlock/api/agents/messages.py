"""The bodies and queries of the agents' requests, and the answers.

Either side may be newer, so unknown fields are ignored.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from oarlock.spec import attempts, jobfile
from oarlock.spec.protocol import assignments, exitrecords

MAX_WAIT_S = 60.0
Offset = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Wait = Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_S)]
Uuid = Annotated[str, msgspec.Meta(max_length=100)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """The registration of a task. The agent's routes ignore unknown fields: either side may be newer."""

    address: Annotated[str, msgspec.Meta(max_length=255)]
    ports: Annotated[tuple[Port, ...], msgspec.Meta(max_length=1024)] = ()
    pid: int | None = None
    host: str = ""
    agent_version: str = ""
    python: str = ""
    gpu_uuids: Annotated[tuple[Uuid, ...], msgspec.Meta(max_length=256)] = ()


class SecretValue(msgspec.Struct, frozen=True):
    """The value of a secret, and the form in which the task gets it. Without a value the agent has it from the cluster,
    in a variable that its assignment names.
    """

    form: jobfile.SecretForm = msgspec.field(name="as")
    value: str | None = None


class Registered(msgspec.Struct, frozen=True):
    """The answer to a registration. `rendezvous` is null until the whole gang has registered."""

    secrets: dict[str, SecretValue]
    rendezvous: assignments.Rendezvous | None
    orders: assignments.Orders


class ProgressEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a task: its step, and the measurements of the training library. Times are in Unix seconds."""

    step: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    time: float | None = None
    total_steps: Annotated[int, msgspec.Meta(ge=0, le=2**62)] | None = None
    examples_per_s: float | None = None
    loss: float | None = None
    epoch: float | None = None
    step_s: float | None = None
    sync_s: float | None = None
    ranks: int | None = None
    local: int | None = None
    accumulate: int | None = None
    noise: float | None = None
    gpu_type: str | None = None
    data_s: float | None = None
    sent_bytes: float | None = None
    slowest_rank: int | None = None
    slowest_s: float | None = None
    fastest_s: float | None = None


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint that the task has loaded."""

    step: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    path: Annotated[str, msgspec.Meta(max_length=4096)] = ""


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The first message of the training library in a process."""

    can_rejoin: bool = False
    lost_round: Annotated[int, msgspec.Meta(ge=0, le=2**31)] | None = None


class TaskReport(msgspec.Struct, frozen=True, kw_only=True):
    """A report of a task. It has the fields that have changed."""

    phase: str | None = None
    progress: ProgressEvent | None = None
    idle_s: Annotated[float, msgspec.Meta(ge=0)] | None = None
    detail: str | None = None
    hello: Hello | None = None
    restored: Restored | None = None
    exit: exitrecords.ExitRecord | None = None
    kept: attempts.Kept | None = None


class Ordered(msgspec.Struct, frozen=True):
    """The answer to a report. `logs` has the stored lengths of streams with lost bytes, to continue from."""

    orders: assignments.Orders
    logs: dict[str, int] = {}


class Length(msgspec.Struct, frozen=True):
    """The stored length of a stream in bytes."""

    length: int


class StacksReport(msgspec.Struct, frozen=True):
    """Python stacks by process, for the request of this number."""

    request: Annotated[int, msgspec.Meta(ge=0, le=2**31)]
    stacks: dict[str, str]


class Visible(msgspec.Struct, frozen=True):
    """The checkpoint is visible."""

    visible: bool = True


class Confided(msgspec.Struct, frozen=True):
    """The secrets of the job, by name."""

    secrets: dict[str, SecretValue]


class Heard(msgspec.Struct, frozen=True):
    """The report has arrived."""

    heard: bool = True


class RendezvousQuery(msgspec.Struct, frozen=True):
    round: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 1
    wait: Wait = 0.0


class OrdersQuery(msgspec.Struct, frozen=True):
    seen: str = ""
    wait: Wait = 0.0


class OffsetQuery(msgspec.Struct, frozen=True):
    offset: Offset
