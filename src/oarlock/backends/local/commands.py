"""A command inside a task's environment: `oarlock exec`, on pipes or on a terminal of its own.

It runs in a session of its own, carries the task's mark and enters its control groups, so that it ends with the task. A
shell of three lines stands before it, because entering a group and taking a terminal must happen between fork and exec.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import struct
import subprocess
import termios
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from oarlock.backends.local import processes
from oarlock.spec import errors

CHUNK_BYTES = 64 * 1024
QUEUED_CHUNKS = 16
_SIGNAL_BASE = 128
KILL_ROUNDS = 8
KILL_WAIT_S = 0.25

_SCRIPT = """\
while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs"; shift; done 2>/dev/null
shift
tty=$1
shift
[ -z "$tty" ] || exec <"$tty" >"$tty" 2>&1
exec "$@"
"""


class Command:
    """One running command (`backends.ExecProcess`). `output` is for one reader."""

    def __init__(self, process: subprocess.Popen[bytes], stdin: int, outputs: Mapping[str, int], *, tty: bool) -> None:
        self._process = process
        self._stdin: int | None = stdin
        self._outputs = dict(outputs)
        self._tty = tty
        self._leader = processes.look(process.pid)
        self._deaf = False
        self._chunks: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue(QUEUED_CHUNKS)
        self._over = asyncio.create_task(self._watch())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return not self._over.done()

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        try:
            while True:
                stream, data = await self._chunks.get()
                yield stream, data
                if stream == "exit":
                    return
        finally:
            self._deaf = True
            while not self._chunks.empty():  # a writer that waits for space goes on
                self._chunks.get_nowait()

    async def write(self, data: bytes) -> None:
        """Wait until the input was taken; input without a reader is dropped."""
        view = memoryview(data)
        while view and self._stdin is not None:
            try:
                view = view[os.write(self._stdin, view) :]
            except BlockingIOError:
                await self._ready(self._stdin, write=True)
            except OSError:
                return

    async def close_stdin(self) -> None:
        if self._stdin is None:
            return
        if self._tty:
            await self.write(b"\x04")  # the key with which a terminal's user ends the input
        else:
            os.close(self._stdin)
            self._stdin = None

    async def resize(self, rows: int, columns: int) -> None:
        if self._tty and self._stdin is not None:
            _set_size(self._stdin, rows, columns)

    async def kill(self) -> None:
        """End its whole session, and all processes that the session has started."""
        if self._leader is not None:
            await asyncio.to_thread(_end_session, self._leader)

    async def close(self) -> None:
        """End it, and wait until it has let go of everything."""
        self._deaf = True
        await self.kill()
        while not self._over.done():
            while not self._chunks.empty():
                self._chunks.get_nowait()
            await asyncio.wait([self._over], timeout=0.05)

    async def _watch(self) -> None:
        """Pass on the output until the command has ended; then the rest in the pipes, which is all that was its own.

        A child that it left behind may hold them open for ever: that one is not waited for.
        """
        ended = asyncio.ensure_future(self._ended())
        try:
            await asyncio.gather(*(self._pump(stream, fd, ended) for stream, fd in self._outputs.items()))
            await ended
            code = self._process.wait()
            await self._put("exit", str(code if code >= 0 else _SIGNAL_BASE - code).encode())
        finally:
            ended.cancel()
            for fd in {*self._outputs.values(), *([] if self._stdin is None else [self._stdin])}:
                os.close(fd)
            self._stdin = None

    async def _pump(self, stream: str, fd: int, ended: asyncio.Future[None]) -> None:
        while True:
            over = ended.done()  # asked before reading: output written before its end is there to be read
            data = _read(fd)
            if data:
                await self._put(stream, data)
            elif data == b"" or over:
                return
            else:
                await self._ready(fd, ended)

    async def _put(self, stream: str, data: bytes) -> None:
        if not self._deaf:
            await self._chunks.put((stream, data))

    async def _ended(self) -> None:
        pidfd = processes.open_pidfd(self._process.pid)
        if pidfd is None:  # reaped at once, or a kernel without them
            await asyncio.to_thread(self._process.wait)
            return
        try:
            await self._ready(pidfd)
        finally:
            os.close(pidfd)

    async def _ready(self, fd: int, ended: asyncio.Future[None] | None = None, *, write: bool = False) -> None:
        """Return when the descriptor can be used, or `ended` is done."""
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()

        def wake(*_: object) -> None:
            if not ready.done():
                ready.set_result(None)

        add, remove = (loop.add_writer, loop.remove_writer) if write else (loop.add_reader, loop.remove_reader)
        add(fd, wake)
        if ended is not None:
            ended.add_done_callback(wake)
        try:
            await ready
        finally:
            remove(fd)
            if ended is not None:
                ended.remove_done_callback(wake)


def start(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    groups: Sequence[str],
    tty: bool,
    rows: int,
    columns: int,
) -> Command:
    """Start it; needs a running loop. Raises InvalidInput for no command, Unavailable where nothing can be started."""
    if not command or any("\0" in word for word in command):
        raise errors.InvalidInput("there is no such command to run", hint="Name one after `--`.")
    theirs: tuple[int, ...] = ()
    ours: dict[str, int] = {}
    try:
        theirs, ours = _terminal() if tty else _pipes()
        if tty:
            _set_size(ours["stdin"], rows, columns)
        process = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "oarlock-exec", *groups, "--", os.ttyname(theirs[0]) if tty else "", *command],
            cwd=cwd,
            env=env,
            stdin=theirs[0],
            stdout=theirs[1],
            stderr=theirs[2],
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        for fd in {*theirs, *ours.values()}:
            os.close(fd)
        raise errors.Unavailable(
            f"the command could not be started: {errors.words(error)}", hint="Try again."
        ) from error
    for fd in set(theirs):
        os.close(fd)
    return Command(process, ours.pop("stdin"), ours, tty=tty)


def _pipes() -> tuple[tuple[int, ...], dict[str, int]]:
    (their_in, our_in), (our_out, their_out), (our_err, their_err) = os.pipe(), os.pipe(), os.pipe()
    ours = {"stdin": our_in, "stdout": our_out, "stderr": our_err}
    for fd in ours.values():
        os.set_blocking(fd, False)
    return (their_in, their_out, their_err), ours


def _terminal() -> tuple[tuple[int, ...], dict[str, int]]:
    """Open a terminal, which the child has from its first moment.

    It takes it as its own by opening it again (`_SCRIPT`).
    """
    master, slave = os.openpty()
    os.set_blocking(master, False)
    return (slave, slave, slave), {"stdin": master, "stdout": master}


def _read(fd: int) -> bytes | None:
    """Return the available bytes; empty at the end; None where there are none yet."""
    try:
        return os.read(fd, CHUNK_BYTES)
    except BlockingIOError:
        return None
    except OSError:  # a terminal that everybody has left
        return b""


def _set_size(fd: int, rows: int, columns: int) -> None:
    size = [min(max(0, number), 0xFFFF) for number in (rows, columns)]
    with contextlib.suppress(OSError):
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))


def _end_session(leader: processes.Stat) -> None:
    for _ in range(KILL_ROUNDS):
        left = processes.in_session(leader)
        if not left:
            return
        for one in left:
            processes.end(one.pid, one.start)
        processes.await_ends(left, KILL_WAIT_S)
