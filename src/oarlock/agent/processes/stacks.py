"""Python stacks of the task's processes, for the record of a hang (see hook/sitecustomize.py).

SIGUSR2 would end a process that does not expect it. So four conditions must hold before it is sent: the ready file is
there, the process belongs to this task, it catches the signal now, and it still has the named file open.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from oarlock.agent import files
from oarlock.agent.processes import procfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oarlock.agent.processes.killing import TaskProcesses

ANSWER_WITHIN_S = 2.0
SETTLED_S = 0.1
LIMIT_PROCESSES = 256
LIMIT_BYTES = 256 << 10


def collect(report: str, task_processes: TaskProcesses) -> dict[str, str]:
    """Ask every process that can answer, wait at most ANSWER_WITHIN_S, and return the stacks that each wrote.

    The keys are the numbers of the task's processes, and `NUMBER:PID` for their children that answer too.
    """
    asked: dict[int, tuple[str, int]] = {}
    alive = set(task_processes.alive())
    for pid, path in _ready(report)[:LIMIT_PROCESSES]:
        if pid not in alive:
            _forget(report, pid, path)
        elif procfs.catches(pid, signal.SIGUSR2) and _has_open(pid, path):
            before = _size(path)
            try:
                os.kill(pid, signal.SIGUSR2)
            except OSError:
                continue
            asked[pid] = (path, before)
    _await(asked)
    found: dict[str, str] = {}
    for pid in sorted(asked):
        number, text = _process_number(pid), _since(*asked[pid])
        if text:
            found[number if number not in found else f"{number}:{pid}"] = text
    return found


def _process_number(pid: int) -> str:
    """Return the number of the task's process that this process is, or descends from."""
    for variable in files.read_bytes(f"/proc/{pid}/environ", 4 << 20).split(b"\0"):
        if variable.startswith(b"OARLOCK_PROCESS="):
            return variable.partition(b"=")[2].decode("utf-8", "replace")
    return "0"


def _ready(report: str) -> list[tuple[int, str]]:
    """Return (pid, path of the answer) for each ready file. Only paths in the report directory count."""
    found = []
    for name in sorted(os.listdir(report)) if os.path.isdir(report) else ():
        number = name[len("stack-") : -len(".ready")]
        if name.startswith("stack-") and name.endswith(".ready") and number.isdigit():
            path = files.read_text(os.path.join(report, name), 4096).strip()
            if os.path.dirname(path) == report.rstrip("/"):
                found.append((int(number), path))
    return found


def _has_open(pid: int, path: str) -> bool:
    directory = f"/proc/{pid}/fd"
    try:
        numbers = os.listdir(directory)
    except OSError:
        return False
    for number in numbers:
        try:
            if os.readlink(os.path.join(directory, number)) == os.path.realpath(path):
                return True
        except OSError:
            continue
    return False


def _await(asked: dict[int, tuple[str, int]]) -> None:
    """Wait until every file has grown and then stopped growing, or the time is over."""
    until = time.monotonic() + ANSWER_WITHIN_S
    sizes: dict[int, int] = {}
    while asked and time.monotonic() < until:
        time.sleep(SETTLED_S)
        now = {pid: _size(path) for pid, (path, _) in asked.items()}
        if now == sizes and all(now[pid] > before for pid, (_, before) in asked.items()):
            return
        sizes = now


def _since(path: str, before: int) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(before)
            return file.read(LIMIT_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _forget(report: str, pid: int, path: str) -> None:
    """Delete the two files of a process that is gone: many short processes would fill the directory."""
    for name in (os.path.join(report, f"stack-{pid}.ready"), path):
        with contextlib.suppress(OSError):
            os.unlink(name)
