"""A home with a real server in it, which may be killed and started again; and whatever of its tasks is alive."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import oarlock
from oarlock.client import packing, settings
from oarlock.spec import errors

T = TypeVar("T")

START_S = 240.0
TASK = Path(__file__).with_name("task.py")


class House:
    """`record` is where the jobs' processes say that they run; `work` is what is submitted with them."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.work = folder / "work"
        self.record = folder / "record"
        self.work.mkdir(parents=True)
        shutil.copy(TASK, self.work)
        self.packed = packing.pack(self.work, settings.resolve({"OARLOCK_HOME": str(self.home)}, {}))
        self.server: subprocess.Popen[bytes] | None = None

    # The server

    def start(self, failpoint: str = "", **said: str) -> None:
        """Start a server, and return at once. `failpoint` is where it is to end itself: `NAME:HIT`."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("OARLOCK_")}
        env |= {"OARLOCK_HOME": str(self.home)}
        if failpoint:
            env["OARLOCK_FAILPOINT"] = failpoint
        words = [word for name, value in said.items() for word in (f"--{name.replace('_', '-')}", value)]
        self.home.mkdir(exist_ok=True)
        with (self.home / "said").open("ab") as said_to:
            self.server = subprocess.Popen(
                [sys.executable, "-m", "oarlock.main", *words],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=said_to,
                stderr=said_to,
                start_new_session=True,
            )

    def until_ready(self) -> None:
        def announced() -> bool:
            assert self.server is not None
            assert self.server.poll() is None, f"it ended with {self.server.returncode}: {self.log()}"
            with contextlib.suppress(OSError, ValueError):
                return bool(json.loads((self.home / "server.json").read_text())["pid"] == self.server.pid)
            return False

        until(announced, START_S, "the server did not start")

    def until_killed(self, timeout_s: float) -> bool:
        """Whether the server was ended by SIGKILL. Fails when it ended in another way."""
        assert self.server is not None
        try:
            code = self.server.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        assert code == -signal.SIGKILL, f"the server ended with {code}: {self.log()}"
        return True

    def kill(self) -> None:
        assert self.server is not None
        self.server.kill()
        self.server.wait()

    def close(self) -> None:
        if self.server is not None:
            self.server.kill()
            self.server.wait()
        for pid in self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def log(self) -> str:
        parts = [self.home / "said", self.home / "server.log"]
        return "\n".join(path.read_text()[-4000:] for path in parts if path.exists())

    # Its users

    def client(self) -> oarlock.Client:
        return oarlock.Client(told=settings.resolve({"OARLOCK_HOME": str(self.home)}, {}), timeout_s=10)

    def persist(self, ask: Callable[[oarlock.Client], T], timeout_s: float = 300.0) -> T:
        """Ask again until a server answers, as a patient user does."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                with self.client() as client:
                    return ask(client)
            except (errors.Unavailable, errors.ServerNotFound):
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    # Its tasks

    def alive(self, job: str = "") -> list[int]:
        """Agents and user processes, of one job or of all, those included that left their session: whatever names a
        task directory.
        """
        mark = f"{self.home}/tasks/{job}".encode()
        return [int(place.name) for place in Path("/proc").iterdir() if place.name.isdigit() and _names(place, mark)]

    def attempts_alive(self) -> set[tuple[str, int]]:
        """Return the attempts, with their jobs, of which a process is alive."""
        found = set()
        for path in self._places("tasks/*/*"):
            if path.name.isdigit() and self.alive(f"{path.parent.name}/{path.name}/"):
                found.add((path.parent.name, int(path.name)))
        return found

    def agents(self) -> dict[str, tuple[int, list[int]]]:
        """Return for each task directory the agent that started in it, and its user processes."""
        found = {}
        for path in self._places("tasks/*/*/*/agent.json"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                told = json.loads(path.read_text())
                found[str(path.parent)] = (int(told["pid"]), [int(pid) for pid in told.get("processes", ())])
        return found

    def _places(self, pattern: str) -> list[Path]:
        """Return the paths below the home that match. `Path.glob` raises where a directory is removed meanwhile."""
        return [Path(found) for found in glob.glob(f"{self.home}/{pattern}")]  # noqa: PTH207

    def is_of(self, pid: int, directory: str) -> bool:
        """Whether this process is of the task in `directory`: a number alone might by now be a stranger's."""
        return _names(Path(f"/proc/{pid}"), directory.encode())

    def task_directories(self) -> list[str]:
        return [str(path) for path in self._places("tasks/*/*/*-*-*") if path.is_dir()]


def _names(place: Path, mark: bytes) -> bool:
    if place.name == str(os.getpid()):
        return False
    try:
        if place.joinpath("stat").read_text().rpartition(")")[2].split()[0] in "ZX":
            return False
        return mark in place.joinpath("cmdline").read_bytes() or mark in place.joinpath("environ").read_bytes()
    except OSError:
        return False


def until(test: Callable[[], object], timeout_s: float, otherwise: str | Callable[[], str]) -> None:
    """Wait for what `test` looks at."""
    deadline = time.monotonic() + timeout_s
    while not test():
        if time.monotonic() > deadline:
            raise AssertionError(otherwise if isinstance(otherwise, str) else otherwise())
        time.sleep(0.1)
