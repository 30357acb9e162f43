"""The rig of the local backend's tests: it makes tasks with a stand-in for the agent, and ends all of them.

The stand-in obeys section 1 of docs/agent-protocol.md (lock, control group, exit.json), and needs no server.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

from tests import needs
from tests.backends import contract

from oarlock.backends import backends
from oarlock.backends.local import backend, cgroups, gpus, locks, processes
from oarlock.spec import attempts, holdings
from oarlock.spec.protocol import assignments
from oarlock.spec.reconciling import observations

STAND_IN = """\
import fcntl, json, os, subprocess, sys, time
directory = sys.argv[1]
with open(directory + "/starts", "a") as file:
    file.write("start\\n")
lock = os.open(directory + "/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit(75)
task = json.load(open(directory + "/assignment.json"))
env = {"PATH": os.environ["PATH"], **task["env"], "OARLOCK_TASK_KEY": task["key"], "OARLOCK_TASK_DIR": directory}
if task["gpus"] is not None:
    env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, task["gpus"]))
with open(directory + "/env.json~", "w") as file:
    json.dump(env, file)
os.rename(directory + "/env.json~", directory + "/env.json")

def enter():
    if task["cgroup"]:
        open(task["cgroup"] + "/cgroup.procs", "w").write("0")

out = open(directory + "/stdout.0", "ab")
command = ["/bin/sh", "-c", task["command"]] if isinstance(task["command"], str) else task["command"]
child = subprocess.Popen(command, env=env, cwd=directory, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                         start_new_session=True, preexec_fn=enter)
code = child.wait()
record = {"key": task["key"], "code": code if code >= 0 else 128 - code, "signal": -code if code < 0 else None,
          "reason": "exited" if code >= 0 else "signal", "killed_by_us": False, "oom": False,
          "kill": "cgroup" if task["cgroup"] else "session",
          "processes": [{"code": code if code >= 0 else None, "signal": -code if code < 0 else None,
                         "ended_at": time.time(), "last_lines": []}], "ended_at": time.time()}
with open(directory + "/exit.json~", "w") as file:
    json.dump(record, file)
    file.flush()
    os.fsync(file.fileno())
os.rename(directory + "/exit.json~", directory + "/exit.json")
time.sleep(task["freeze_s"] or 0)
os._exit(0)
"""

IMMUNE = "trap '' TERM; sleep 600; exit"


def can_group() -> bool:
    """Whether control groups can be made here at all."""
    return _probed().unified is not None


def can_limit(what: str) -> bool:
    """Whether `memory` or `cpus` can be limited here."""
    return what in _probed().enforced


@functools.cache
def _probed() -> cgroups.Cgroups:
    found = cgroups.probe(f"oarlock-test-{os.getpid()}")
    found.close()
    return found


grouped = needs.mark("control groups", there=can_group())


class LocalRig(contract.Rig):
    """A home of its own. `groups` None: the control groups of the machine; `cgroups.Cgroups()`: none."""

    def __init__(self, home: Path, *, groups: cgroups.Cgroups | None = None, **more: object) -> None:
        self.home = home
        self.locks = home.parent / "locks"
        self.locks.mkdir(parents=True, exist_ok=True)
        self.agent = home.parent / "stand-in.py"
        self.agent.write_text(STAND_IN)
        self._groups = groups
        self._more = more
        self.opened: list[backend.LocalBackend] = []
        self.backend = self.open()

    def open(self) -> backend.LocalBackend:
        more = {"found_gpus": gpus.Pretended(), "claim": self.claim, "share": self.share, **self._more}
        opened = backend.LocalBackend(self.home, agent=self.agent, groups=self._groups, **more)
        self.opened.append(opened)
        return opened

    def claim(self, name: str) -> int | None:
        return locks.claim(name, where=self.locks)

    def share(self, name: str, owner: int) -> int | None:
        return locks.share(name, owner, where=self.locks)

    def launch_of(
        self,
        key: attempts.TaskKey,
        command: str | Sequence[str],
        *,
        amount: holdings.Resources = holdings.Resources(),  # noqa: B008  (frozen)
        node: str = "local",
        devices: tuple[int, ...] = (),
        freeze_s: float | None = None,
        env: dict[str, str] | None = None,
    ) -> backends.TaskLaunch:
        command = command if isinstance(command, str) else tuple(command)
        return backends.TaskLaunch(
            key=key,
            assignment=assignments.Assignment(
                key=str(key), server="http://127.0.0.1:9", token="t", command=command, freeze_s=freeze_s, env=env or {}
            ),
            holding=holdings.Holding(
                job=key.job,
                attempt=key.attempt,
                role=key.role,
                index=key.index,
                node=node,
                amount=amount,
                devices=devices,
            ),
            limit=amount,
        )

    def sleeper(self, key: attempts.TaskKey) -> backends.TaskLaunch:
        return self.launch_of(key, IMMUNE)

    def exiter(self, key: attempts.TaskKey, code: int) -> backends.TaskLaunch:
        return self.launch_of(key, f"exit {code}")

    def unlaunchable(self, key: attempts.TaskKey) -> backends.TaskLaunch:
        return self.launch_of(key, "true", node="elsewhere")

    def directory(self, key: attempts.TaskKey) -> Path:
        return self.home.resolve() / "tasks" / key.job / str(key.attempt) / f"{key.role}-{key.index}-{key.incarnation}"

    async def starts(self, key: attempts.TaskKey) -> int:
        path = self.directory(key) / "starts"
        await self.until_file(path)
        return len(path.read_text().splitlines())

    async def pass_time(self) -> None:
        await asyncio.sleep(0.02)

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self.PATIENCE_S
        while time.monotonic() < deadline:
            if holds():
                return
            await self.pass_time()
        raise AssertionError(f"waited for: {what}")

    async def until_file(self, path: Path) -> str:
        """The content of a file that a task writes in one line."""
        await self.until(lambda: path.exists() and path.read_text().endswith("\n"), f"{path} was written")
        return path.read_text().strip()

    async def reopen(self) -> None:
        self.backend = self.open()

    async def close(self) -> None:
        self.backend = self.open()
        keys = [seen.key for seen in await self.backend.observe() if seen.state is not observations.State.GONE]
        await contract.kill_and_see(self, *keys)
        for attempt in {(seen.key.job, seen.key.attempt) for seen in await self.backend.observe()}:
            await self.backend.discard(*attempt)
        for opened in self.opened:
            await opened.close()


class Rigs:
    """Makes rigs, and ends whatever they started, however the test ends."""

    def __init__(self) -> None:
        self._made: list[LocalRig] = []

    def __call__(self, home: Path, **more: object) -> LocalRig:
        self._made.append(LocalRig(home, **more))
        return self._made[-1]

    async def close(self) -> None:
        for rig in self._made:
            await rig.close()


def nap() -> str:
    """A time for `sleep`, about ten minutes, that no other command line on this machine contains: ports, ids, paths."""
    return f"600.{uuid.uuid4().int:040}"


def living(marker: str) -> list[int]:
    """Processes that run with this in their command line: seen without the backend's own eyes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            seen = processes.look(int(path.parent.name))
            if marker.encode() in path.read_bytes() and seen is not None and seen.alive:
                found.append(int(path.parent.name))
    return found


@contextlib.contextmanager
def stranger(env: dict[str, str]) -> Iterator[int]:
    """A process of ours that belongs to no task, with this environment."""
    argv = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]
    pid = os.posix_spawn(sys.executable, argv, env, setsid=True)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


async def collect(output: AsyncIterator[tuple[str, bytes]]) -> dict[str, bytes]:
    """All that a command wrote, by stream, and its exit code as `exit`."""
    found: dict[str, bytearray] = {}
    async for stream, data in output:
        found.setdefault(stream, bytearray()).extend(data)
    return {stream: bytes(data) for stream, data in found.items()}
