"""Interface of every backend: it runs tasks and never decides.

Every implementation (fake, local, Kubernetes) passes `tests/backends/contract.py`. A backend keeps no decision of its
own: it is told which incarnations to make and which to end, and reports its observations. Every request may be
repeated: making a made task, killing a gone task and discarding a discarded one do nothing. A backend's knowledge
survives a restart of the server, because it is read from the world (lock files and processes, pods), not from memory.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from oarlock.spec import attempts, errors, holdings, jobfile, resources, roles
from oarlock.spec.access import kubernetessecrets
from oarlock.spec.cluster import nodes
from oarlock.spec.protocol import assignments
from oarlock.spec.reconciling import observations


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """The environment of a task on a backend that runs containers. The local backend has none of it."""

    image: str | None = None  # else the cluster's image for the framework
    framework: roles.Framework = roles.Framework.TORCH
    gpus: bool = False  # whether a task of the job holds GPUs: all tasks of a job have one image
    volumes: tuple[jobfile.Volume, ...] = ()
    job_name: str = ""  # for people who look at the pod
    pool: str = ""  # whose additions to pods it gets
    owner: str = ""  # whose environments of dependencies it shares
    continues: str = ""  # the path of the checkpoint of another job that it begins from
    resource: resources.Resource | None = None  # the object of the cluster with which the task goes
    secrets: tuple[kubernetessecrets.Named, ...] = ()  # that the platform gives to the task


class TaskLaunch(msgspec.Struct, frozen=True, kw_only=True):
    key: attempts.TaskKey
    assignment: assignments.Assignment
    holding: holdings.Holding
    limit: holdings.Resources = holdings.Resources()  # the most it gets, where the backend can see to it; zero: any
    container: Container = Container()


class Leftover(msgspec.Struct, frozen=True):
    """A file of an ended task whose bytes may not all have been delivered: the server appends the missing ones."""

    stream: str  # `stdout.0`, or `metrics-0` for metric frames
    path: Path


class ExecProcess(Protocol):
    """A command inside a task's environment.

    Output arrives as (stream, bytes); the last item is (`exit`, code as ASCII).
    """

    def output(self) -> AsyncIterator[tuple[str, bytes]]: ...

    async def write(self, data: bytes) -> None: ...

    async def close_stdin(self) -> None: ...

    async def resize(self, rows: int, columns: int) -> None: ...

    async def kill(self) -> None: ...


Still = Callable[[], bool]
"""Returns whether this server may make tasks: whether it still leads, in the epoch of the plan."""


def always() -> bool:
    return True


def check(still: Still) -> None:
    """Raise StaleEpoch where this server may not make tasks any more."""
    if not still():
        raise errors.StaleEpoch("this server does not lead any more", hint="The server that leads makes the tasks.")


class Backend(Protocol):
    name: str
    tasks_at_once: int
    """The most tasks of several gangs that are made at the same time. With 1 a gang is made after the other."""

    def capabilities(self) -> dict[str, str]:
        """Return facts about the machines or the cluster for `GET /api/v1/server`."""
        ...

    async def nodes(self) -> list[nodes.Node]:
        """Return the machines that there are now.

        One that is lost is listed as not ready for as long as something is held on it.
        """
        ...

    def nodes_changed(self) -> bool:
        """Return whether the machines may be others than at the last call of `nodes`. False where that costs a look."""
        ...

    async def launch(self, tasks: Sequence[TaskLaunch], *, still: Still = always, within_s: float = math.inf) -> None:
        """Make these tasks: all, or raise Unavailable with the reason. `observe` then reports the tasks made, to be
        killed. Raises StaleEpoch where `still` says no, which is asked right before each step that starts processes.

        The launch is broken off after `within_s` seconds. A backend that waits for others, as for a scheduler, gives up
        before that, so that it can tell their reason.
        """
        ...

    async def renew(self) -> None:
        """Return once `observe` knows each task that was made before this call, also by another server. Raises
        Unavailable.
        """
        ...

    async def observe(self) -> list[observations.Observed]:
        """Return every task that this backend knows of, of any job, also those that ended, until they are discarded."""
        ...

    async def kill(self, keys: Sequence[attempts.TaskKey]) -> None:
        """End everything of these tasks, agent and user's processes, at once (SIGKILL).

        `observe` tells when they are gone.
        """
        ...

    async def leftovers(self, key: attempts.TaskKey) -> list[Leftover]:
        """Return the files that an ended task has left for the server to read. Empty where the agent delivered
        everything.
        """
        ...

    async def discard(self, job: str, attempt: int) -> None:
        """Forget an attempt that was released: its directories or pods. Never its checkpoints and results."""
        ...

    async def exec(
        self, key: attempts.TaskKey, command: Sequence[str], *, tty: bool = False, rows: int = 24, columns: int = 80
    ) -> ExecProcess:
        """Run a command in the task. Raise Conflict when the task neither runs nor is frozen."""
        ...

    async def wait(self, timeout_s: float) -> None:
        """Return when something may have changed (a task ended), or after the time-out. A hint."""
        ...

    async def close(self) -> None:
        """Let go. Running tasks run on."""
        ...
