"""A backend in memory, for tests and the simulator: tasks follow a script, and time is the given clock.

The `World` stands for the machines: it outlives a server, and two servers may look at one. `Fake` is a server's handle
on it. The state of a task is derived from its behaviour and the clock at each look, so that nothing runs between two
looks. Nothing here suspends, `wait` excepted.

A task plays the agent's part as far as a backend sees it. A test or the simulator plays the rest (registering,
reporting) and tells the world: `begin` when the barrier was passed, `stop` for SIGTERM, `let_go` for the order to go.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from oarlock.backends import backends
from oarlock.spec import attempts, errors
from oarlock.spec.cluster.nodes import Node  # a method below bears the module's name
from oarlock.spec.reconciling import observations


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """The script of one task.

    Its process runs `runs_s` seconds (for ever: infinity) and exits with `code`, or by `signal`. `at_barrier` counts
    from `World.begin`, else from the launch. It ends `stops_s` after a SIGTERM (infinity: it does not listen). Then its
    agent stays until `let_go` if it `lingers`. `vanishes_s` after its launch agent and process are gone without an exit
    record; `abandons_s` after it the agent alone is gone, and its process runs on. `unlaunchable` gives the reason why
    it cannot be made at all.
    """

    runs_s: float = math.inf
    code: int = 0
    signal: int | None = None
    oom: bool = False
    last_lines: tuple[str, ...] = ()
    stops_s: float = 0.0
    at_barrier: bool = False
    lingers: bool = False
    vanishes_s: float = math.inf
    abandons_s: float = math.inf
    unlaunchable: str = ""


Script = Callable[[backends.TaskLaunch], Behaviour]


class _Made(msgspec.Struct, kw_only=True):
    """One incarnation that was made. Times are the clock's."""

    launch: backends.TaskLaunch
    behaviour: Behaviour
    launched_at: float
    running: observations.Observed  # its state while it runs
    began_at: float | None = None
    stopped_at: float | None = None
    let_go_at: float | None = None
    killed_at: float | None = None

    @property
    def endless(self) -> bool:
        """Return whether it runs until it is stopped."""
        does = self.behaviour
        return (
            self.stopped_at is None
            and self.killed_at is None
            and does.runs_s == does.vanishes_s == does.abandons_s == math.inf
        )


class World:
    """The machines and their tasks.

    `starts` counts how often each incarnation was started: once, or something is wrong. `leftovers` are files that a
    test says a task has left.
    """

    def __init__(self, machines: Sequence[Node], script: Script, clock: Callable[[], float]) -> None:
        self.script = script
        self.clock = clock
        self.starts: dict[attempts.TaskKey, int] = {}
        self.leftovers: dict[attempts.TaskKey, list[backends.Leftover]] = {}
        self.changed = asyncio.Event()
        self._nodes = {node.name: node for node in machines}
        self._lost: dict[str, float] = {}
        self._made: dict[attempts.TaskKey, _Made] = {}

    def nodes(self) -> list[Node]:
        return [
            msgspec.structs.replace(node, ready=False, reason="node lost") if node.name in self._lost else node
            for node in self._nodes.values()
        ]

    def add(self, node: Node) -> None:
        self._nodes[node.name] = node
        self.changed.set()

    def remove(self, name: str) -> None:
        """Declare the machine gone, with its tasks."""
        self._nodes.pop(name, None)
        self._lost.pop(name, None)
        for made in self._made.values():
            if made.launch.holding.node == name:
                made.killed_at = self.clock() if made.killed_at is None else made.killed_at
        self.changed.set()

    def lose(self, name: str) -> None:
        """Make the machine unreachable: its tasks are not known to have ended, and cannot be killed."""
        self._lost[name] = self.clock()
        self.changed.set()

    def find(self, name: str) -> None:
        self._lost.pop(name, None)
        self.changed.set()

    def begin(self, key: attempts.TaskKey) -> None:
        """Let the agent start the user's process."""
        self._told(key, "began_at")

    def end(self, key: attempts.TaskKey, code: int = 0, signal: int | None = None) -> None:
        """Let the user's process end now, whatever its script says."""
        made = self._made.get(key)
        if made is not None:
            base = made.began_at if made.behaviour.at_barrier else made.launched_at
            if base is not None:
                made.behaviour = msgspec.structs.replace(
                    made.behaviour, runs_s=self.clock() - base, code=code, signal=signal
                )
                self.changed.set()

    def abandon(self, key: attempts.TaskKey) -> None:
        """End the agent now; its process runs on."""
        made = self._made.get(key)
        if made is not None:
            made.behaviour = msgspec.structs.replace(made.behaviour, abandons_s=self.clock() - made.launched_at)
            self.changed.set()

    def stop(self, key: attempts.TaskKey) -> None:
        """Let the agent send SIGTERM."""
        self._told(key, "stopped_at")

    def let_go(self, key: attempts.TaskKey) -> None:
        """Let the agent leave."""
        self._told(key, "let_go_at")

    def began(self, key: attempts.TaskKey) -> bool:
        return key in self._made and self._made[key].began_at is not None

    def running(self) -> list[attempts.TaskKey]:
        """Return the incarnations of which something may run."""
        return [key for key in self._made if self.look(key).state is not observations.State.GONE]

    def known(self) -> list[attempts.TaskKey]:
        return list(self._made)

    def launches(self) -> list[backends.TaskLaunch]:
        return [made.launch for made in self._made.values()]

    def make(self, launch: backends.TaskLaunch) -> None:
        """Make a task that behaves as its script says. Raise Unavailable where its node or the script refuses it."""
        if launch.key in self._made:
            return
        behaviour = self.script(launch)
        if launch.holding.node in self._lost or launch.holding.node not in self._nodes:
            raise errors.Unavailable(f"node {launch.holding.node} cannot be reached", hint="It is tried again.")
        if behaviour.unlaunchable:
            raise errors.Unavailable(behaviour.unlaunchable, hint="It is tried again.")
        self.starts[launch.key] = self.starts.get(launch.key, 0) + 1
        self._made[launch.key] = _Made(
            launch=launch,
            behaviour=behaviour,
            launched_at=self.clock(),
            running=observations.Observed(key=launch.key, state=observations.State.RUNNING),
        )
        self.changed.set()

    def kill(self, key: attempts.TaskKey) -> None:
        made = self._made.get(key)
        if made is not None and made.killed_at is None and made.launch.holding.node not in self._lost:
            made.killed_at = self.clock()
            self.changed.set()

    def discard(self, job: str, attempt: int) -> None:
        for key in [key for key in self._made if (key.job, key.attempt) == (job, attempt)]:
            del self._made[key]

    def look(self, key: attempts.TaskKey) -> observations.Observed:
        """Return the task's state. Raises KeyError for a task that was never made."""
        made = self._made[key]
        lost_at = self._lost.get(made.launch.holding.node) if self._lost else None
        if lost_at is None and made.endless:
            return made.running
        now = self.clock() if lost_at is None else lost_at
        left = _exit(made)
        left = left if left is not None and left.at <= now else None
        if _gone_at(made, left) <= now:
            state = observations.State.GONE
        elif left is None and made.launched_at + made.behaviour.abandons_s <= now:
            state = observations.State.ENDED
        else:
            state = observations.State.RUNNING
        return observations.Observed(key=key, state=state, exit=left, detail="node lost" if lost_at is not None else "")

    def _told(self, key: attempts.TaskKey, what: str) -> None:
        made = self._made.get(key)
        if made is not None and getattr(made, what) is None:
            setattr(made, what, self.clock())
            self.changed.set()


def _exit(made: _Made) -> attempts.Exit | None:
    """Return the exit record that the task leaves if nothing else is done to it; None where there will be none."""
    does = made.behaviour
    base = made.began_at if does.at_barrier else made.launched_at
    ends_at = _later(base, does.runs_s)
    stops_at = _later(made.stopped_at, does.stops_s)
    at = min(ends_at, stops_at)
    silenced_at = min(_later(made.launched_at, min(does.vanishes_s, does.abandons_s)), _later(made.killed_at, 0.0))
    if at == math.inf or at >= silenced_at:
        return None
    if stops_at < ends_at:
        return attempts.Exit(code=143, cause=attempts.Cause.STOPPED, at=at, signal=15, reason="stopped")
    code = does.code if does.signal is None else 128 + does.signal
    return attempts.Exit(code=code, cause=_cause(does), at=at, signal=does.signal, last_lines=does.last_lines)


def _cause(does: Behaviour) -> attempts.Cause:
    if does.oom:
        return attempts.Cause.OOM
    if does.signal is not None:
        return attempts.Cause.SIGNAL
    return attempts.Cause.ERROR if does.code else attempts.Cause.SUCCEEDED


def _gone_at(made: _Made, left: attempts.Exit | None) -> float:
    """Return the moment from which nothing of the task runs any more."""
    killed_at = _later(made.killed_at, 0.0)
    if left is None:
        return min(killed_at, _later(made.launched_at, made.behaviour.vanishes_s))
    if not made.behaviour.lingers:
        return left.at
    return max(left.at, min(killed_at, _later(made.let_go_at, 0.0)))


def _later(start: float | None, duration_s: float) -> float:
    return math.inf if start is None else start + duration_s


class Fake:
    """A server's handle on a world. Closing it ends nothing."""

    name = "fake"
    tasks_at_once = 1

    def __init__(self, world: World) -> None:
        self.world = world

    async def nodes(self) -> list[Node]:
        return self.world.nodes()

    def capabilities(self) -> dict[str, str]:
        return {}

    def nodes_changed(self) -> bool:
        return False

    async def launch(
        self,
        tasks: Sequence[backends.TaskLaunch],
        *,
        still: backends.Still = backends.always,
        within_s: float = math.inf,
    ) -> None:
        for task in tasks:
            backends.check(still)
            self.world.make(task)

    async def renew(self) -> None:
        """Do nothing: each look is at the world as it is now."""

    async def observe(self) -> list[observations.Observed]:
        return [self.world.look(key) for key in self.world.known()]

    async def kill(self, keys: Sequence[attempts.TaskKey]) -> None:
        for key in keys:
            self.world.kill(key)

    async def leftovers(self, key: attempts.TaskKey) -> list[backends.Leftover]:
        return list(self.world.leftovers.get(key, ()))

    async def discard(self, job: str, attempt: int) -> None:
        self.world.discard(job, attempt)

    async def exec(
        self, key: attempts.TaskKey, command: Sequence[str], *, tty: bool = False, rows: int = 24, columns: int = 80
    ) -> backends.ExecProcess:
        if key not in self.world.running():
            raise errors.Conflict(f"{key} does not run", hint="`oarlock show` says what does.")
        return Echo(command)

    async def wait(self, timeout_s: float) -> None:
        self.world.changed.clear()
        try:
            await asyncio.wait_for(self.world.changed.wait(), timeout_s)
        except TimeoutError:
            return

    async def close(self) -> None:
        return


class Echo:
    """A command that prints its arguments and exits with 0."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        yield "stdout", " ".join(self._command).encode() + b"\n"
        yield "exit", b"0"

    async def write(self, data: bytes) -> None:
        return

    async def close_stdin(self) -> None:
        return

    async def resize(self, rows: int, columns: int) -> None:
        return

    async def kill(self) -> None:
        return
