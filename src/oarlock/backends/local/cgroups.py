"""Control groups: the members of a task, its limits, and one write that ends all of it.

A home has a group of its own, `oarlock-HOMEHASH`, and every task one in it:

- in the cgroup v2 tree, where we may make one and move our processes there (as root, or in a delegated subtree). It
  needs no controller for `cgroup.kill` and for `populated`; with the memory and cpu controllers it also limits;
- for a controller that is bound to cgroup v1 on this machine, in that controller's tree, below our own group.

The agent's children enter the v2 group by themselves (`assignment.cgroup`). The v1 groups are entered by the agent
before it starts, because its contract knows only of the v2 one: there its own 15 MB count, and the limit is raised by
as much. A group that cannot be made is missing and is reported (`Cgroups.enforced`); a task runs without any of them.
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from oarlock.backends.local import processes
from oarlock.spec import holdings

PERIOD_US = 100_000
AGENT_BYTES = 32 << 20
"""The addition to a v1 memory limit: there the agent is inside."""

MIN_QUOTA_US = 1_000
CONTROLLERS = ("memory", "cpu")
PROBE_TIMEOUT_S = 5.0
PREFIX = "oarlock-"
LONG_EMPTY_S = 3600.0
_UNLIMITED_BYTES = 1 << 62


class Group(msgspec.Struct, frozen=True):
    """The directories of one task: `unified` in the v2 tree, `legacy` one for each v1 controller."""

    unified: str | None = None
    legacy: tuple[str, ...] = ()

    @property
    def directories(self) -> tuple[str, ...]:
        return ((self.unified,) if self.unified else ()) + self.legacy

    @property
    def oom_counter(self) -> str | None:
        """The file that counts the kernel's kills for memory in this task; None where nothing does."""
        unified = [Path(self.unified) / "memory.events"] if self.unified else []
        counters = unified + [Path(directory) / "memory.oom_control" for directory in self.legacy]
        return next((str(counter) for counter in counters if counter.exists()), None)


class Mount(msgspec.Struct, frozen=True):
    """A mounted hierarchy and where this process is in it. `controllers` is empty for v2, which lists its own."""

    point: Path
    own: Path
    controllers: frozenset[str] = frozenset()


class Cgroups:
    """The groups of one home.

    `enforced` says how a limit is kept, by `cpus` and `memory`; a missing limit is not kept.
    """

    def __init__(
        self, unified: Path | None = None, legacy: Mapping[str, Path] | None = None, enforced: Sequence[str] = ()
    ) -> None:
        self.unified = unified
        self.legacy = dict(legacy or {})
        self.v2_controllers = frozenset(enforced)
        self.enforced = {
            {"cpu": "cpus"}.get(name, name): "cgroup v2" if name in self.v2_controllers else "cgroup v1"
            for name in CONTROLLERS
            if name in self.v2_controllers or name in self.legacy
        }

    @property
    def bases(self) -> list[Path]:
        return ([self.unified] if self.unified else []) + sorted(set(self.legacy.values()))

    def make(self, name: str, amount: holdings.Resources) -> Group:
        """Return a task's group with its limits. Raises OSError; making it again sets the limits again."""
        made: list[Path] = []
        if self.unified is not None:
            made.append(self.unified / name)
        made += [base / name for base in sorted(set(self.legacy.values()))]
        self._restore()
        for directory in made:
            directory.mkdir(exist_ok=True)
        if self.unified is not None and self.v2_controllers:
            _limit_v2(self.unified / name, amount, self.v2_controllers)
        for controller, base in self.legacy.items():
            _limit_v1(base / name, amount, controller)
        paths = [str(directory) for directory in made]
        return Group(paths[0], tuple(paths[1:])) if self.unified is not None else Group(None, tuple(paths))

    def names(self) -> set[str]:
        """Return the tasks that have a group, running or not."""
        return {child.name for base in self.bases for child in _children(base)}

    def of(self, name: str) -> Group:
        """Return the group that a task of this name has or would have."""
        legacy = tuple(str(base / name) for base in sorted(set(self.legacy.values())))
        return Group(str(self.unified / name) if self.unified is not None else None, legacy)

    def _restore(self) -> None:
        """Make the home's own group again where another home has taken it for a dead one's (`_sweep`)."""
        for base in self.bases:
            with contextlib.suppress(FileExistsError):
                base.mkdir()
                if base == self.unified and self.v2_controllers:
                    _delegate(base.parent, base)

    def close(self) -> None:
        """Take the home's own group away where no task has one any more."""
        for base in self.bases:
            with contextlib.suppress(OSError):
                base.rmdir()


def _limit_v2(directory: Path, amount: holdings.Resources, controllers: frozenset[str]) -> None:
    if "memory" in controllers and amount.memory_bytes > 0:
        _write(directory / "memory.max", str(amount.memory_bytes))
        with contextlib.suppress(OSError):  # no swap, or not accounted: then it is not limited
            _write(directory / "memory.swap.max", "0")
    if "cpu" in controllers and amount.cpus_milli > 0:
        _write(directory / "cpu.max", f"{_quota_us(amount)} {PERIOD_US}")
        _allow_burst(directory / "cpu.max.burst", amount)


def _limit_v1(directory: Path, amount: holdings.Resources, controller: str) -> None:
    if controller == "memory" and amount.memory_bytes > 0:
        limit = str(amount.memory_bytes + AGENT_BYTES)
        _write(directory / "memory.limit_in_bytes", limit)
        with contextlib.suppress(OSError):  # as above
            _write(directory / "memory.memsw.limit_in_bytes", limit)
    if controller == "cpu" and amount.cpus_milli > 0:
        _write(directory / "cpu.cfs_period_us", str(PERIOD_US))
        _write(directory / "cpu.cfs_quota_us", str(_quota_us(amount)))
        _allow_burst(directory / "cpu.cfs_burst_us", amount)


def _allow_burst(path: Path, amount: holdings.Resources) -> None:
    """Let the unused part of one period be used later: threads that meet briefly are not stopped for that."""
    with contextlib.suppress(OSError):  # before 5.14
        _write(path, str(_quota_us(amount)))


def _quota_us(amount: holdings.Resources) -> int:
    return max(MIN_QUOTA_US, amount.cpus_milli * PERIOD_US // 1000)


def populated(group: Group) -> bool | None:
    """Return whether any process lives in it; None where there is no group to ask. A removed group was empty."""
    answers: list[bool] = []
    if group.unified is not None:
        answers.append(_fields(Path(group.unified) / "cgroup.events").get("populated") == 1)
    answers += [any(_lives(pid) for pid in _pids(Path(directory))) for directory in group.legacy]
    return any(answers) if answers else None


def _lives(pid: int) -> bool:
    """Return whether the pid lives. v1 may list zombies; a pid of another namespace is 0, and may live."""
    seen = processes.look(pid)
    return pid == 0 or (seen is not None and seen.alive)


def pids(group: Group) -> set[int]:
    """Return all processes in it and in groups below it, zombies included."""
    return {pid for directory in group.directories for pid in _pids(Path(directory))} - {0}


def kill(group: Group) -> bool:
    """Send SIGKILL to all in the v2 group, at once.

    Return False where there is none, or where the kernel cannot (before 5.14).
    """
    if group.unified is None:
        return False
    try:
        _write(Path(group.unified) / "cgroup.kill", "1")
    except FileNotFoundError:
        return not Path(group.unified).exists()
    except OSError:
        return False
    return True


def oom_kills(group: Group) -> int:
    """Return how many processes of the task the kernel has killed for its memory limit, children included."""
    counter = group.oom_counter
    return _fields(Path(counter)).get("oom_kill", 0) if counter is not None else 0


def remove(group: Group) -> bool:
    """Take the directories away, those that the task made in them included; False where something still lives there."""
    removed = [_remove(Path(directory)) for directory in group.directories]
    return all(removed)


def _remove(directory: Path) -> bool:
    for child in _children(directory):
        _remove(child)
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def probe(name: str, *, mounts: Sequence[Mount] | None = None) -> Cgroups:
    """Try which groups can be made on this machine. `name` is the home's group: PREFIX and its hash."""
    mounts = find_mounts() if mounts is None else mounts
    unified: Path | None = None
    controllers: list[str] = []
    for parent in (parent for mount in mounts if not mount.controllers for parent in _parents(mount)):
        base = _try_base(parent, name)
        if base is not None:
            unified, controllers = base, _delegate(parent, base)
            break
    legacy: dict[str, Path] = {}
    for controller in CONTROLLERS:
        for mount in mounts:
            if controller in mount.controllers and controller not in controllers:
                base = _try_base(mount.own, name)
                if base is not None:
                    legacy[controller] = base
    return Cgroups(unified, legacy, controllers)


def _parents(mount: Mount) -> Iterator[Path]:
    """Yield the places where the home's group may lie, best first.

    With controllers a group holds processes or groups, never both: hence not our own group at first, except at the
    root, which is free of that rule.
    """
    if os.geteuid() == 0:
        yield mount.point
    if mount.own != mount.point:
        if mount.own.parent != mount.point:
            yield mount.own.parent
        yield mount.own


def _try_base(parent: Path, name: str) -> Path | None:
    """Return the home's group, once a process of ours could really enter a group in it."""
    _sweep(parent)
    base = parent / name
    trial = base / f".probe-{os.getpid()}"
    try:
        base.mkdir(exist_ok=True)
        trial.mkdir(exist_ok=True)
    except OSError:
        with contextlib.suppress(OSError):
            base.rmdir()
        return None
    try:
        entered = subprocess.run(
            ["/bin/sh", "-c", 'echo $$ >"$0/cgroup.procs"', str(trial)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
        usable = entered.returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        usable = False
    _remove(trial)
    if not usable:
        with contextlib.suppress(OSError):
            base.rmdir()
    return base if usable else None


def _sweep(parent: Path) -> None:
    """Remove groups of homes whose server was killed and never came back: own groups, empty for long.

    A home that only had nothing to run makes its group again when it has.
    """
    for base in _children(parent):
        with contextlib.suppress(OSError):
            if base.name.startswith(PREFIX) and time.time() - base.stat().st_mtime > LONG_EMPTY_S:
                base.rmdir()


def _delegate(parent: Path, base: Path) -> list[str]:
    """Return the v2 controllers of tasks' groups.

    They are requested level by level, since each level passes on only its own controllers.
    """
    had: list[str] = []
    for controller in CONTROLLERS:
        for level in (parent, base):
            if controller not in _words(level / "cgroup.subtree_control"):
                with contextlib.suppress(OSError):
                    _write(level / "cgroup.subtree_control", f"+{controller}")
        if controller in _words(base / "cgroup.subtree_control"):
            had.append(controller)
    return had


def find_mounts(proc: Path = Path("/proc/self")) -> list[Mount]:
    """Return the mounted hierarchies, v2 first, with this process's place in each, as far as it is visible here."""
    try:
        places = [line.split(":", 2) for line in (proc / "cgroup").read_text().splitlines()]
        lines = (proc / "mountinfo").read_text().splitlines()
    except OSError:
        return []
    own = {controllers: Path(path) for _, controllers, path in places}
    found: list[Mount] = []
    for line in lines:
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        root, point = before.split()[3:5]
        names = frozenset(options.split(",")) & set(CONTROLLERS) if kind == "cgroup" else frozenset[str]()
        mine = next((path for listed, path in own.items() if _is_of(listed, kind, names)), None)
        if kind in ("cgroup", "cgroup2") and mine is not None:
            inside = mine.relative_to(root) if mine.is_relative_to(root) else Path()
            found.append(Mount(Path(point), Path(point) / inside, names))
    return sorted(found, key=lambda mount: len(mount.controllers))


def _is_of(listed: str, kind: str, names: frozenset[str]) -> bool:
    if kind == "cgroup2":
        return listed == ""
    return kind == "cgroup" and bool(names & set(listed.split(",")))


def limits(mounts: Sequence[Mount] | None = None) -> holdings.Resources:
    """Return the CPUs and memory to which its groups and those above limit this process; 0 where they do not."""
    cpus: list[int] = []
    memory: list[int] = []
    for mount in find_mounts() if mounts is None else mounts:
        for level in (mount.own, *mount.own.parents):
            cpus += _cpu_limit(level)
            memory += _memory_limit(level)
            if level == mount.point:
                break
    return holdings.Resources(cpus_milli=min(cpus, default=0), memory_bytes=min(memory, default=0))


def _cpu_limit(level: Path) -> list[int]:
    words = _words(level / "cpu.max") or _words(level / "cpu.cfs_quota_us") + _words(level / "cpu.cfs_period_us")
    if len(words) != 2 or not words[0].isdigit() or not words[1].isdigit():
        return []  # `max`, -1, or no such controller
    return [int(words[0]) * 1000 // int(words[1])]


def _memory_limit(level: Path) -> list[int]:
    words = _words(level / "memory.max") or _words(level / "memory.limit_in_bytes")
    found = [int(word) for word in words if word.isdigit()]
    return [limit for limit in found if limit < _UNLIMITED_BYTES]


def _pids(directory: Path) -> set[int]:
    found = {int(word) for word in _words(directory / "cgroup.procs") if word.isdigit()}
    for child in _children(directory):
        found |= _pids(child)
    return found


def _children(directory: Path) -> list[Path]:
    try:
        return [child for child in directory.iterdir() if stat.S_ISDIR(child.lstat().st_mode)]
    except OSError:
        return []


def _fields(path: Path) -> dict[str, int]:
    words = _words(path)
    return {name: int(value) for name, value in zip(words[::2], words[1::2], strict=False) if value.isdigit()}


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _write(path: Path, text: str) -> None:
    # Opened without O_CREAT: without such a file there is no such controller.
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
