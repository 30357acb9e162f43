"""One agent under test: a task directory, a fake server, a real interpreter, and a broom that sweeps up after it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from tests import needs, oldpythons
from tests.agent.fakeserver import FakeServer

HOOK = Path(__file__).parents[2] / "src" / "oarlock" / "agent" / "hook"


def old_python(version: str) -> ParameterSet:
    """Return an interpreter of this version as a parameter of tests, which are skipped where there is none."""
    found = oldpythons.interpreter(version)
    return pytest.param(found, id=version, marks=needs.mark(f"Python {version}", there=bool(found)))


EVERY_PYTHON = pytest.mark.parametrize("python", [pytest.param(sys.executable, id="new"), old_python("3.8")])
"""The newest and the oldest Python that an agent may have."""
CEILING_S = 240.0


def until(condition: Callable[[], Any], what: str, timeout_s: float = CEILING_S) -> Any:
    """Wait for the condition; a generous ceiling turns a hang into a failure that says what was awaited."""
    end = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < end, f"waited {timeout_s} s in vain for {what}"
        time.sleep(0.01)
    return value


def environ_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def processes_with(text: str) -> list[int]:
    """Live processes with the text in their environment, as a backend's clean-up sees them."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in pids if text.encode() in environ_of(pid) and alive(pid)]


class Rig:
    def __init__(self, directory: Path, agent: Path, python: str) -> None:
        self.python = python
        self.agent = agent
        self.directory = directory
        self.token = uuid.uuid4().hex  # in the environment of everything that this test's user processes start
        self.key = f"j-{self.token[:8]}/1/worker/0/1"
        self.server = FakeServer(directory.parent / "server.json").start()
        self.process: subprocess.Popen[bytes] | None = None
        self.env: dict[str, str] = {}  # further variables of the agent
        self.outside = directory.parent / "outside"
        self.outside.mkdir()

    def assign(self, command: str | list[str], **fields: Any) -> None:
        self.directory.mkdir(mode=0o700, exist_ok=True)
        assignment = {
            "key": self.key,
            "server": "http://127.0.0.1:9",
            "server_file": str(self.server.server_file),
            "token": "token-1",
            "address": "127.0.0.1",
            "command": command,
            "nproc": 1,
            "env": {},
            "path_env": {"PATH": os.environ["PATH"], "OUTSIDE": str(self.outside), "RIG": self.token},
            "grace_s": 5,
            "hook_path": str(HOOK),
            "spool_bytes": 1 << 30,
        }
        assignment["path_env"]["PYTHON"] = self.python
        (self.directory / "assignment.json").write_text(json.dumps({**assignment, **fields}))

    def start(self, failpoint: str | None = None) -> None:
        # The mark is in the agent's own environment too, as the local backend has it: it must not kill itself.
        env = {
            "PATH": os.environ["PATH"],
            "OARLOCK_TASK_KEY": self.key,
            **self.env,
            **({"OARLOCK_AGENT_FAILPOINT": f"{failpoint}:kill"} if failpoint else {}),
        }
        with (self.directory.parent / "agent.stderr").open("ab") as stderr:
            self.process = subprocess.Popen(
                [self.python, "-I", str(self.agent), str(self.directory)],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )

    def begin(self, command: str | list[str], **fields: Any) -> None:
        self.assign(command, **fields)
        self.start()

    def run(self, command: str | list[str], **fields: Any) -> dict[str, Any]:
        """Start, wait for the agent's end, return the exit record."""
        self.begin(command, **fields)
        return self.finish()

    def finish(self, timeout_s: float = CEILING_S) -> dict[str, Any]:
        assert self.process is not None
        self.process.wait(timeout_s)
        stderr = (self.directory.parent / "agent.stderr").read_text()
        assert "Traceback" not in stderr, stderr
        journal = (self.directory / "agent.log").read_text()
        assert "stumbled" not in journal, journal
        return self.record()

    def record(self) -> dict[str, Any]:
        return json.loads((self.directory / "exit.json").read_text())

    def wait_for_file(self, name: str) -> str:
        """A file that the user's process writes into OUTSIDE, whole once it ends with a newline."""
        path = self.outside / name
        return until(lambda: path.exists() and path.read_text().endswith("\n") and path.read_text(), name)

    def user_processes(self) -> list[int]:
        return processes_with(f"RIG={self.token}")

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
        if self.process is not None:
            self.process.wait()
        for pid in self.user_processes():
            os.kill(pid, signal.SIGKILL)
        self.server.stop()
