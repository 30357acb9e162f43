"""The present state of each task, read from the world: its lock, its exit record, its processes.

A task RUNS while its agent lives. Once the agent is gone it has ENDED until two looks in a row find nothing of it; a
look asks the v2 control group where there is one and the agent has left its record, and /proc otherwise. Then it is
GONE, which is written down (`gone.json`, with the facts of the control group), so that no second look is needed.

Memory only saves looking: a new server over the same home comes to the same answers.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from oarlock.backends.local import cgroups, launching, processes, tree
from oarlock.spec import attempts
from oarlock.spec.protocol import exitrecords
from oarlock.spec.reconciling import observations

LAUNCH, EXIT, KILLED, GONE, LOCK = "launch.json", "exit.json", "killed.json", "gone.json", "lock"
START_GRACE_S = 5.0
"""The longest time that a directory may lie there without its agent's pid. The shell needs some milliseconds."""

LOOKS_WITHOUT_PROOF = 3
KILL_ROUNDS = 8
KILL_WAIT_S = 0.25
MAX_RECORD_BYTES = 4 << 20
_KILLED_CODE, _SIGKILL = 137, 9
_NOT_OOM = frozenset({attempts.Cause.SUCCEEDED, attempts.Cause.STOPPED, attempts.Cause.OOM, attempts.Cause.PLATFORM})

State = observations.State


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `launch.json`: facts for a later server about the making of the task."""

    boot: str
    node: str
    group: cgroups.Group = cgroups.Group()
    gpus: tuple[str, ...] = ()  # uuids of the real devices that it holds
    shared: bool = False  # of which it holds a share


class Killed(msgspec.Struct, frozen=True):
    """`killed.json`: this backend was told to end it."""

    at: float
    way: str  # `cgroup` or `session`


class Ending(msgspec.Struct, frozen=True):
    """`gone.json`: nothing of it runs any more."""

    at: float
    oom_kills: int = 0


class Task:
    """One incarnation. `first_seen` is monotonic, and this server's; `final` will not change any more."""

    def __init__(self, key: attempts.TaskKey, path: Path, now: float) -> None:
        self.key = key
        self.path = path
        self.first_seen = now
        self.mark = processes.Mark(str(key), str(path))
        self.launch = _read(path / LAUNCH, Launch) or Launch(boot=processes.boot(), node="")
        self.started: launching.Started | None = None
        self.final: observations.Observed | None = None

    @property
    def this_boot(self) -> bool:
        return self.launch.boot == processes.boot()

    def agent(self) -> launching.Started | None:
        if self.started is None:
            self.started = launching.started(self.path)
        return self.started

    def agent_lives(self) -> bool:
        """Judge by its pid and start time; by its lock only where that process is gone: to try the lock is to take it.

        An agent that was started at this moment must not find the lock taken.
        """
        if not self.this_boot:
            return False
        agent = self.agent()
        if agent is not None and agent.pid and processes.lives(agent.pid, agent.start):
            return True
        return agent is not None and _is_locked(self.path / LOCK)

    def record(self, now: float) -> attempts.Exit | None:
        """Return its exit record, as the agent wrote it."""
        try:
            return exitrecords.read(_bytes(self.path / EXIT), now=now)
        except (OSError, msgspec.MsgspecError):
            return None

    def exit(self, ending: Ending | None, now: float) -> attempts.Exit | None:
        """Return how it ended, once its agent is gone: its record, corrected by the kernel's counts.

        Without a record that is the effect of our own signal.
        """
        oom = ending is not None and ending.oom_kills > 0
        if (record := self.record(now)) is not None:
            if oom and record.cause not in _NOT_OOM:
                record = msgspec.structs.replace(record, cause=attempts.Cause.OOM, reason="oom")
            return record
        if (killed := _read(self.path / KILLED, Killed)) is not None:
            return attempts.Exit(
                code=_KILLED_CODE,
                cause=attempts.Cause.STOPPED,
                at=killed.at,
                signal=_SIGKILL,
                reason="killed",
                killed_by=killed.way,
            )
        if oom and ending is not None:  # the agent itself was the victim
            return attempts.Exit(
                code=_KILLED_CODE, cause=attempts.Cause.OOM, at=ending.at, signal=_SIGKILL, reason="oom"
            )
        return None


class Look(msgspec.Struct, frozen=True):
    """The findings of one look.

    `watch` are the processes whose end would change it: living agents, and processes that outlived them.
    """

    seen: list[observations.Observed]
    watch: list[processes.Stat]
    ended: list[Task]  # the agent is gone, but not all of the task
    gone: list[Task]  # which this look has confirmed


class Tasks:
    """All tasks of a home. Its methods block; `kill` may run beside the others, of which one runs at a time."""

    def __init__(
        self, where: tree.Tree, *, clock: Callable[[], float], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.tree = where
        self._clock = clock
        self._monotonic = monotonic
        self._known: dict[attempts.TaskKey, Task] = {}

    def find(self, key: attempts.TaskKey) -> Task | None:
        path = self.tree.path(key)
        if not path.is_dir():
            return None
        return self._known.get(key) or Task(key, path, self._monotonic())

    def forget(self, key: attempts.TaskKey) -> None:
        """Forget a task after its directory was taken away."""
        self._known.pop(key, None)

    def of(self, job: str, attempt: int) -> list[Task]:
        """Return the tasks of one attempt; `final` is set in those that are known to be gone."""
        self._refresh()
        theirs = [task for key, task in self._known.items() if (key.job, key.attempt) == (job, attempt)]
        for task in theirs:
            self._final(task)
        return theirs

    def gpus(self) -> set[str]:
        """Return the uuids of the devices that tasks have which are not gone."""
        self._refresh()
        return {uuid for task in self._known.values() if self._final(task) is None for uuid in task.launch.gpus}

    def look(self) -> Look:
        now = self._monotonic()
        keys = self._refresh()
        seen: dict[attempts.TaskKey, observations.Observed] = {}
        unsure: list[Task] = []
        watch: list[processes.Stat] = []
        for task in self._known.values():
            if (final := self._final(task)) is not None:
                seen[task.key] = final
            elif self._runs(task, now):
                record = task.record(self._clock())
                seen[task.key] = observations.Observed(key=task.key, state=State.RUNNING, exit=record)
                watch += _agent_stat(task)
            else:
                unsure.append(task)
        left = self.remains(unsure)
        gone = [task for task in unsure if not left[task.key] and self._confirm(task)]
        for task in unsure:
            seen[task.key] = task.final or self._observed(task, State.ENDED, detail=_names(left[task.key]))
            watch += left[task.key]
        return Look([seen[key] for key in keys], watch, [task for task in unsure if task not in gone], gone)

    def remains(self, of: Sequence[Task]) -> dict[attempts.TaskKey, list[processes.Stat]]:
        """Return the living processes of these tasks, agents included.

        Nothing is said to be gone because one pass over /proc did not show it: a process may fork and end meanwhile, so
        that neither it nor its child is seen. A look that proves its answer ends the search; without a proof there are
        `LOOKS_WITHOUT_PROOF` of them.
        """
        found: dict[attempts.TaskKey, list[processes.Stat]] = {task.key: [] for task in of}
        looking = []
        for task in of:
            if not task.this_boot:
                continue  # the machine was started again since
            if self._all_was_inside(task) and not cgroups.populated(task.launch.group):
                continue
            looking.append(task)
        for _ in range(LOOKS_WITHOUT_PROOF):
            looking = [task for task in looking if not found[task.key]]
            if not looking:
                break
            marks = {task.mark: task for task in looking}
            roots = {mark: cgroups.pids(task.launch.group) for mark, task in marks.items()}
            seen = processes.remains(marks, roots)
            found.update((marks[mark].key, stats) for mark, stats in seen.found.items())
            if seen.proven:
                break
        return found

    def kill(self, keys: Iterable[attempts.TaskKey]) -> None:
        """End these tasks, as far as that can be done in a few seconds.

        The caller asks again for tasks that are not gone by then.
        """
        tasks = [task for key in keys if (task := self.find(key)) is not None and self._final(task) is None]
        for task in tasks:
            self._begin_kill(task)
        for _ in range(KILL_ROUNDS):
            for task in tasks:
                cgroups.kill(task.launch.group)
            processes.strike({task.mark for task in tasks})
            left = self.remains(tasks)
            tasks = [task for task in tasks if left[task.key]]
            if not tasks:
                break
            ending = [one for stats in left.values() for one in stats]
            for one in ending:
                processes.end(one.pid, one.start)
            processes.await_ends(ending, KILL_WAIT_S)

    def _all_was_inside(self, task: Task) -> bool:
        """Return whether the agent ended in good order and says that its control group held all that it had started."""
        record = task.record(self._clock()) if task.launch.group.unified else None
        return record is not None and record.killed_by == "cgroup"

    def _refresh(self) -> list[attempts.TaskKey]:
        now, keys = self._monotonic(), self.tree.keys()
        self._known = {key: self._known.get(key) or Task(key, self.tree.path(key), now) for key in keys}
        return keys

    def _begin_kill(self, task: Task) -> None:
        """Forbid its start, write down the reason for its end, and keep its agent from misjudging that end."""
        way = "cgroup" if task.launch.group.unified else "session"
        with contextlib.suppress(OSError):  # a full disk: it is killed all the same
            if not (task.path / EXIT).exists():
                tree.write(task.path / KILLED, msgspec.json.encode(Killed(self._clock(), way)))
            task.started = launching.forbid(task.path)
        agent = task.agent()
        if task.this_boot and agent is not None and agent.pid:
            processes.end(agent.pid, agent.start)

    def _runs(self, task: Task, now: float) -> bool:
        if task.agent_lives():
            return True
        if task.started is not None:
            return False
        if task.this_boot and now - task.first_seen < START_GRACE_S:
            return True  # made, and its agent is about to write its pid
        with contextlib.suppress(OSError):
            task.started = launching.forbid(task.path)
        return task.agent_lives()

    def _final(self, task: Task) -> observations.Observed | None:
        if task.final is None and (ending := _read(task.path / GONE, Ending)) is not None:
            task.final = self._observed(task, State.GONE, ending)
        return task.final

    def _confirm(self, task: Task) -> bool:
        ending = Ending(self._clock(), cgroups.oom_kills(task.launch.group) if task.this_boot else 0)
        with contextlib.suppress(OSError):
            # On a full disk it is GONE as well, but the control group stays until its facts could be written.
            tree.write(task.path / GONE, msgspec.json.encode(ending))
            cgroups.remove(task.launch.group)
        task.final = self._observed(task, State.GONE, ending)
        return True

    def _observed(
        self, task: Task, state: State, ending: Ending | None = None, detail: str = ""
    ) -> observations.Observed:
        left = task.exit(ending, self._clock())
        return observations.Observed(key=task.key, state=state, exit=left, detail=detail)


def _names(left: Sequence[processes.Stat]) -> str:
    return f"{len(left)} processes outlived the agent: " + ", ".join(str(one.pid) for one in left[:5]) if left else ""


def _agent_stat(task: Task) -> list[processes.Stat]:
    agent = task.agent()
    seen = processes.look(agent.pid) if agent is not None and agent.pid else None
    return [seen] if seen is not None and agent is not None and seen.start == agent.start else []


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _bytes(path: Path) -> bytes:
    """Return a file's bytes, at most a record's number. A user's process might have put something else there."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        return file.read(MAX_RECORD_BYTES)


T = TypeVar("T")


def _read(path: Path, what: type[T]) -> T | None:
    """Return a record that this backend has written; None where there is none, or it cannot be read."""
    try:
        return msgspec.json.decode(_bytes(path), type=what)
    except (OSError, msgspec.MsgspecError):
        return None
