"""The local backend: tasks are processes of this machine, each under an agent that outlives the server.

    home/tasks/JOB/ATTEMPT/ROLE-INDEX-INCARNATION/    assignment.json launch.json agent.pid lock exit.json gone.json

All its answers are read from there and from /proc (`tasks.Tasks`), so that the server after a killed one adopts the
running tasks. It isolates nothing and serves one user; docs/local-backend.md lists the limits and the escapes.

Methods are for one event loop. Blocking work runs in threads, one piece at a time; kills and looks do not wait for each
other.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from oarlock.backends import backends
from oarlock.backends.local import (
    cgroups,
    commands,
    devices,
    gpus,
    launching,
    locks,
    machine,
    ports,
    processes,
    tasks,
    tree,
    watches,
)
from oarlock.spec import attempts, errors
from oarlock.spec.cluster import nodes as machines
from oarlock.spec.protocol import assignments
from oarlock.spec.reconciling import observations

HASH_DIGITS = 12
PORTS_PER_HOME = 1000
PORTS_PER_VIRTUAL_NODE = 250
MAX_VIRTUAL_NODES = 1000
ADDRESS = "127.0.0.1"


class LocalBackend:
    """`agent` is the agent's zipapp. `environ` is the server's environment, of which agents get a few variables.

    With `virtual_nodes` the machine pretends to be as many, each with `virtual_gpus` devices; tasks are real.
    Raises Unsupported on anything but Linux, Unavailable when the home cannot be used.
    """

    name = "local"
    tasks_at_once = 1

    def __init__(
        self,
        home: Path,
        *,
        agent: Path,
        virtual_nodes: int = 0,
        virtual_gpus: int = 0,
        clock: Callable[[], float] = time.time,
        environ: Mapping[str, str] | None = None,
        found_gpus: gpus.Gpus | None = None,
        groups: cgroups.Cgroups | None = None,
        claim: Callable[[str], int | None] = locks.claim,
        share: Callable[[str, int], int | None] = locks.share,
        python: str = sys.executable,
    ) -> None:
        processes.require()
        _check_virtual(virtual_nodes, virtual_gpus)
        self.home = home.resolve()
        self._hash = hashlib.sha256(os.fsencode(self.home)).hexdigest()[:HASH_DIGITS]
        self._environ = dict(os.environ if environ is None else environ)
        self._agent = (python, "-I", "-S", str(agent.resolve()))
        self._virtual = (virtual_nodes, virtual_gpus)
        self._tree = tree.Tree(self.home)
        self._tasks = tasks.Tasks(self._tree, clock=clock)
        self._groups = cgroups.probe(f"{cgroups.PREFIX}{self._hash}") if groups is None else groups
        found = gpus.Nvml(self._environ.get("CUDA_VISIBLE_DEVICES")) if found_gpus is None else found_gpus
        owner = int(self._hash, 16)
        self._devices = devices.Devices(found, claim, lambda name: share(name, owner))
        wanted = max(PORTS_PER_HOME, virtual_nodes * PORTS_PER_VIRTUAL_NODE)
        self._ports = ports.take(self._hash, wanted, claim)
        self._watch = watches.Watch()
        self._one_at_a_time = asyncio.Lock()
        self._commands: set[commands.Command] = set()
        self._swept = False

    def capabilities(self) -> dict[str, str]:
        """Return the limits that are enforced on this machine, and how: for `GET /api/v1/server`, and for people."""
        return {
            "isolation": "none",
            "kill": "cgroup" if self._groups.unified is not None else "session",
            "ports": "claimed" if self._ports.certain else "shared",
            **machine.limits(self._groups.enforced),
        }

    async def nodes(self) -> list[machines.Node]:
        async with self._one_at_a_time:
            return await asyncio.to_thread(self._nodes)

    def nodes_changed(self) -> bool:
        """Return False: the machine is looked at now and then."""
        return False

    async def launch(
        self,
        tasks: Sequence[backends.TaskLaunch],
        *,
        still: backends.Still = backends.always,
        within_s: float = math.inf,
    ) -> None:
        async with self._one_at_a_time:
            backends.check(still)
            try:
                await asyncio.to_thread(self._launch, tasks)
            finally:
                self._watch.changed()

    async def renew(self) -> None:
        """Do nothing: each look is at the directories as they are now."""

    async def observe(self) -> list[observations.Observed]:
        async with self._one_at_a_time:
            self._watch.looked()
            look = await asyncio.to_thread(self._look)
            self._watch.follow(look.watch)
        return look.seen

    async def kill(self, keys: Sequence[attempts.TaskKey]) -> None:
        await asyncio.to_thread(self._tasks.kill, keys)
        self._watch.changed()

    async def leftovers(self, key: attempts.TaskKey) -> list[backends.Leftover]:
        return await asyncio.to_thread(_leftovers, self._tree.path(key))

    async def discard(self, job: str, attempt: int) -> None:
        async with self._one_at_a_time:
            await asyncio.to_thread(self._discard, job, attempt)

    async def exec(
        self, key: attempts.TaskKey, command: Sequence[str], *, tty: bool = False, rows: int = 24, columns: int = 80
    ) -> backends.ExecProcess:
        cwd, env, task = await asyncio.to_thread(self._inside, key)
        if tty:
            env.setdefault("TERM", "xterm-256color")
        started = commands.start(
            command, cwd=cwd, env=env, groups=task.launch.group.directories, tty=tty, rows=rows, columns=columns
        )
        processes.set_limit_mark(started.pid, task.mark.limit)
        self._commands = {one for one in self._commands if one.running} | {started}
        return started

    async def wait(self, timeout_s: float) -> None:
        await self._watch.wait(timeout_s)

    async def close(self) -> None:
        for command in self._commands:
            await command.close()
        self._watch.close()
        self._devices.close()
        self._ports.close()
        self._groups.close()

    # In threads

    def _nodes(self) -> list[machines.Node]:
        room, said = machine.capacity(), machine.labels(self._groups.enforced)
        count, pretended = self._virtual
        if count:
            return machine.virtual(room, pretended, self._ports.split(count), said)
        found = self._devices.offered(self._tasks.gpus())
        return [machine.real(room, found, (self._ports.first, self._ports.last), said)]

    def _look(self) -> tasks.Look:
        look = self._tasks.look()
        for task in look.ended:
            self._devices.keep(task.key, task.launch.gpus, shared=task.launch.shared)
        for task in look.gone:
            self._devices.release(task.key)
        if not self._swept:
            self._swept = True
            self._sweep({_group_name(seen.key) for seen in look.seen})
        return look

    def _sweep(self, known: set[str]) -> None:
        """Delete the remains of attempts that an earlier server had discarded."""
        self._tree.sweep()
        for name in self._groups.names() - known:
            cgroups.remove(self._groups.of(name))

    def _launch(self, launches: Sequence[backends.TaskLaunch]) -> None:
        """Do first everything that can fail without a process, for all of them; then start them."""
        made: list[attempts.TaskKey] = []
        try:
            for one in launches:
                if self._prepare(one):
                    made.append(one.key)
        except (OSError, errors.OarlockError) as error:
            for key in made:
                self._unmake(key)
            if isinstance(error, errors.OarlockError):
                raise
            raise _unavailable("a task could not be made", error) from error
        for one in launches:
            self._start(one)

    def _prepare(self, one: backends.TaskLaunch) -> bool:
        """Make the task's directory and groups, unless it was made before. Raises OSError, Unavailable."""
        path = self._tree.path(one.key)
        if path.exists():
            return False
        uuids = self._uuids(one)
        group = self._groups.make(_group_name(one.key), one.limit)
        shared = one.holding.amount.gpu_milli > 0
        record = tasks.Launch(boot=processes.boot(), node=one.holding.node, group=group, gpus=uuids, shared=shared)
        try:
            files = {
                "assignment.json": msgspec.json.encode(self._complete(one, group, path)),
                tasks.LAUNCH: msgspec.json.encode(record),
            }
            return self._tree.make(one.key, files)
        except OSError:
            cgroups.remove(group)
            raise

    def _uuids(self, one: backends.TaskLaunch) -> tuple[str, ...]:
        """Return the real devices of the task: none on a virtual node.

        Raise Unavailable for a node that is none of ours.
        """
        count, _ = self._virtual
        names = [f"virtual-{number}" for number in range(count)] or [machine.NAME]
        if one.holding.node not in names:
            raise errors.Unavailable(
                f"node {one.holding.node} is not here", hint="It is tried again on the nodes that there are."
            )
        return () if count else self._devices.uuids(one.holding.devices)

    def _complete(self, one: backends.TaskLaunch, group: cgroups.Group, path: Path) -> assignments.Assignment:
        """Return the assignment with this machine's own facts. Devices that a task does not hold are hidden from it."""
        hidden = bool(self._virtual[0]) or self._devices.exist()
        env = one.assignment.env
        if one.holding.devices and not self._virtual[0]:
            env = {**env, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # else CUDA counts the fastest first, and NVML does not
        return msgspec.structs.replace(
            one.assignment,
            key=str(one.key),
            address=ADDRESS,
            ports=one.holding.ports or one.assignment.ports,
            cgroup=group.unified,
            oom_counter=group.oom_counter,
            limit_mark=processes.Mark(str(one.key), str(path)).limit,
            gpus=None if not hidden else () if self._virtual[0] else one.holding.devices,
            env=env,
        )

    def _start(self, one: backends.TaskLaunch) -> None:
        """Start its agent, unless one was, or could have been in an earlier boot. Raises Unavailable."""
        path = self._tree.path(one.key)
        task = self._tasks.find(one.key)
        if task is None or task.agent() is not None or not task.this_boot:
            return
        env = launching.environment(self._environ, task.mark)
        try:
            claims = self._devices.take(one.key, task.launch.gpus, shared=task.launch.shared)
            pid = launching.start((*self._agent, str(path)), path, env, task.launch.group.legacy, claims)
        except OSError as error:
            raise _unavailable(f"the agent of {one.key} could not be started", error) from error
        self._watch.child(pid)

    def _unmake(self, key: attempts.TaskKey) -> None:
        task = self._tasks.find(key)
        self._tasks.forget(key)
        self._tree.unmake(key)
        if task is not None:
            cgroups.remove(task.launch.group)

    def _discard(self, job: str, attempt: int) -> None:
        theirs = self._tasks.of(job, attempt)
        if any(task.final is None for task in theirs):
            self._look()
        left = [task.key for task in theirs if task.final is None]
        if left:
            raise errors.Conflict(f"{left[0]} still runs", hint="An attempt is discarded once all of it is gone.")
        for task in theirs:
            cgroups.remove(task.launch.group)
            self._tasks.forget(task.key)
        self._tree.discard(job, attempt)

    def _inside(self, key: attempts.TaskKey) -> tuple[Path, dict[str, str], tasks.Task]:
        """Return the directory and environment of a command inside the task. Raises Conflict unless it runs or is
        frozen.
        """
        task = self._tasks.find(key)
        if task is None or not task.agent_lives():
            raise errors.Conflict(
                f"{key} neither runs nor is frozen", hint="Set `freeze` in the job file to look at failed tasks."
            )
        try:
            env = msgspec.json.decode((task.path / "env.json").read_bytes(), type=dict[str, str])
            assignment = msgspec.json.decode((task.path / "assignment.json").read_bytes(), type=assignments.Assignment)
        except (OSError, msgspec.MsgspecError) as error:
            raise errors.Conflict(f"{key} has not started its process yet", hint="Try again in a moment.") from error
        # The mark last: whatever runs inside a task ends with it.
        env |= {processes.KEY_MARK: task.mark.key, processes.DIRECTORY_MARK: task.mark.directory}
        wanted = (Path(assignment.workdir) if assignment.workdir else task.path / "code", task.path)
        return next(path for path in wanted if path.is_dir()), env, task


def _check_virtual(count: int, pretended: int) -> None:
    if not 0 <= count <= MAX_VIRTUAL_NODES or not 0 <= pretended <= MAX_VIRTUAL_NODES:
        raise errors.InvalidInput(
            f"{count} virtual nodes with {pretended} GPUs each cannot be pretended",
            hint=f"Ask for 1 to {MAX_VIRTUAL_NODES} of either.",
        )
    if pretended and not count:
        raise errors.InvalidInput("virtual GPUs need virtual nodes", hint="Add --virtual-nodes 1.")


def _group_name(key: attempts.TaskKey) -> str:
    return f"{key.job}.{key.attempt}.{key.role}-{key.index}-{key.incarnation}"


def _unavailable(what: str, error: OSError) -> errors.Unavailable:
    return errors.Unavailable(f"{what}: {error.strerror or error}", hint="`oarlock doctor` looks for the reason.")


def _leftovers(path: Path) -> list[backends.Leftover]:
    """Return the regular files: other things that a task has put in their place are not read."""
    named = [(child.name, child) for pattern in ("stdout.*", "stderr.*") for child in path.glob(pattern)]
    named += [(child.stem, child) for child in (path / "report").glob("metrics-*.bin")]
    numbered = [(stream, child) for stream, child in named if stream.replace("-", ".").rpartition(".")[2].isdigit()]
    return [
        backends.Leftover(stream, child)
        for stream, child in sorted(numbered)
        if child.is_file() and not child.is_symlink()
    ]
