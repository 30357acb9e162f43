"""The user's processes. Each leads a session of its own, writes to files, and is reaped by the agent alone.

A leader that has ended stays a zombie until all processes of the task are gone. Until then the kernel cannot give its
pid to another process, so a signal to its group or session reaches the right processes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oarlock.agent.processes.cgroups import Cgroup


SHELL = "/bin/sh"


class Process:
    """A started process. `code` or `signal` is set once it has ended; `ended_by_us` if the agent had signalled it."""

    def __init__(self, pid: int, popen: subprocess.Popen[bytes] | None) -> None:
        self.pid = pid
        self._popen = popen  # kept, so that subprocess does not reap the process
        self.code: int | None = None
        self.signal: int | None = None
        self.ended_at: float | None = None
        self.signalled = False
        self.ended_by_us = False

    @property
    def running(self) -> bool:
        return self.ended_at is None

    @property
    def failed(self) -> bool:
        return not self.running and not self.ended_by_us and bool(self.signal or self.code)

    def poll(self) -> bool:
        """Return whether the process has ended, without reaping it (process 1 of a container does reap it)."""
        if self.running:
            status = _peek(self.pid)
            if status is not None:
                self.end(*status)
        return not self.running

    def end(self, code: int | None, signum: int | None) -> None:
        self.code, self.signal = code, signum
        self.ended_at = time.time()
        self.ended_by_us = self.signalled
        if self._popen is not None:
            self._popen.returncode = -signum if signum else (code or 0)

    def reap(self) -> None:
        reap(self.pid)


def start(
    argv: list[str], env: dict[str, str], cwd: str, stdout: str, stderr: str, cgroup: Cgroup | None = None
) -> Process:
    """Start `argv` in a new session, with its output appended to the two files. OSError if it cannot be started.

    subprocess forks and execs in C. Python code runs in between only to enter a cgroup: one write to a descriptor that
    is open already. It takes no lock that another thread could hold.
    """
    entry = cgroup.entry_fd() if cgroup is not None else -1
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    out = os.open(stdout, flags, 0o600)
    err = out if stderr == stdout else os.open(stderr, flags, 0o600)

    def enter() -> None:
        try:
            os.write(entry, b"0\n")
        except OSError:
            pass  # `Cgroup.holds` notices it afterwards

    try:
        popen = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=cwd,
            env=env,
            start_new_session=True,
            preexec_fn=enter if entry >= 0 else None,  # noqa: PLW1509 - see above
        )
    finally:
        for fd in {out, err, entry} - {-1}:
            os.close(fd)
    return Process(popen.pid, popen)


def argv_of(command: str | list[str]) -> list[str]:
    return [SHELL, "-c", command] if isinstance(command, str) else list(command)


def why_not(error: OSError, command: str | list[str], workdir: str) -> str:
    """Return why the command cannot be started, and the next step where the shell itself is missing."""
    where = "" if os.path.isdir(workdir) else f" ({workdir} is not a directory)"
    name = f"{error.filename}: " if error.filename else ""
    why = f"the command cannot be started: {name}{error.strerror or error}{where}"
    if isinstance(command, str) and error.filename == SHELL and error.errno == errno.ENOENT:
        why += ". A command that is a text needs a shell, and the image has none: give `command` as a list of words"
    return why


def _peek(pid: int) -> tuple[int | None, int | None] | None:
    """Return (code, signal) of an ended child, left as a zombie if the system can do that; None while it runs."""
    if os.getpid() != 1 and hasattr(os, "waitid"):
        try:
            seen = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None, 9  # reaped by another part of this process: its status is lost
        if seen is None:
            return None
        return (seen.si_status, None) if seen.si_code == os.CLD_EXITED else (None, seen.si_status)
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None, 9
    if not done:
        return None
    return (os.WEXITSTATUS(status), None) if os.WIFEXITED(status) else (None, os.WTERMSIG(status))


def child_lives() -> bool:
    """Return whether this process has a living child. The answer is exact: the kernel looks at all of them at once.

    Zombies do not count. A process that lost its first thread counts as long as another thread runs. A subreaper
    without a living child has no living descendant, because it would have adopted it.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def reap(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.waitpid(pid, os.WNOHANG)


def reap_adopted(own: set[int]) -> None:
    """Reap the children that this process has adopted (as process 1 of a container, or as a subreaper), not `own`."""
    if not hasattr(os, "waitid"):
        return
    for _ in range(1000):
        try:
            seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if seen is None or seen.si_pid in own:
            return  # `poll` handles it
        reap(seen.si_pid)
