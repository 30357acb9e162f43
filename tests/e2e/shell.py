"""A user's shell: a home of its own, a working directory, and the `oarlock` command as it was installed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import oarlock
from oarlock.client import settings
from oarlock.spec import jobs

BIN = Path(sys.executable).parent
FAILED = pytest.StashKey[bool]()
"""The mark of a test that has failed."""
EVIDENCE_LINES = 60
OARLOCK = str(BIN / "oarlock")


class Shell:
    """`home` and `work` are directories; the server is started by the first command that needs it, as for anybody."""

    def __init__(self, folder: Path, home: Path | None = None) -> None:
        self.folder = folder
        self.home = home or folder / "home"
        self.work = folder / "work dir"  # a space, as people have them
        self.work.mkdir(parents=True)
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("OARLOCK_")}
        self.env |= {"OARLOCK_HOME": str(self.home), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}

    def write(self, name: str, text: str) -> Path:
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip())
        return path

    def do(self, *arguments: str, code: int | None = 0, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
        """Run `oarlock ARGUMENTS`; `code` is the exit code it must have, None where that is the question."""
        try:
            done = subprocess.run(
                [OARLOCK, *arguments],
                env=self.env,
                cwd=self.work,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            said = "\n".join((text or b"").decode(errors="replace") for text in (late.stdout, late.stderr))  # bytes
            raise AssertionError(f"oarlock {' '.join(arguments)} has not ended after {timeout_s} s\n{said}") from late
        said = f"oarlock {' '.join(arguments)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert code is None or done.returncode == code, said
        return done

    def start(self, *arguments: str, together: bool = False) -> subprocess.Popen[str]:
        """`together`: stderr goes where stdout goes, as on a terminal."""
        return subprocess.Popen(
            [OARLOCK, *arguments],
            env=self.env,
            cwd=self.work,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if together else subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    def json(self, *arguments: str) -> Any:
        return json.loads(self.do(*arguments, "--json").stdout)

    def client(self) -> oarlock.Client:
        """Return a client in this process. To look often, use this one: a command costs a process and six requests."""
        return oarlock.Client(told=settings.resolve(self.env, {}))

    def job(self, name: str) -> dict[str, Any]:
        """Return the job as the API tells it."""
        with self.client() as client:
            found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(client.job(name)))
        return found

    def wait_for(self, name: str, test: Callable[[dict[str, Any]], bool], timeout_s: float = 240) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while True:
            job = self.job(name)
            if test(job):
                return job
            assert time.monotonic() < deadline, f"still {job['phase']} after {timeout_s} s: {json.dumps(job)[:3000]}"
            time.sleep(0.2)

    def wait_phase(self, name: str, *phases: str, timeout_s: float = 240) -> dict[str, Any]:
        return self.wait_for(name, lambda job: job["phase"] in phases, timeout_s)

    def wait_file(self, path: Path, timeout_s: float = 240) -> str:
        deadline = time.monotonic() + timeout_s
        while not path.exists() or not path.read_text():
            assert time.monotonic() < deadline, f"{path} did not appear"
            time.sleep(0.05)
        return path.read_text()

    def evidence(self) -> list[tuple[str, str]]:
        """Return what the report of a failed test tells about this user's server, by title."""
        log = self.home / "server.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else ["there is none"]
        found = [("the server's log", "\n".join(lines[-EVIDENCE_LINES:]))]
        with self.client() as client:
            found_jobs = [client.job(one.id) for one in client.jobs()]
        found.append(
            ("the jobs that have not ended", "\n".join(_line(job) for job in found_jobs if job.ended_at is None))
        )
        return found

    def end_server(self) -> None:
        """End the server, also one that does not obey."""
        with contextlib.suppress(AssertionError):
            self.do("down", code=None)
        with contextlib.suppress(OSError, ValueError, KeyError):
            pid = self.server_pid()
            if b"oarlock.main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)

    def server_pid(self) -> int:
        return int(json.loads((self.home / "server.json").read_text())["pid"])


def _line(job: jobs.Job) -> str:
    waits = job.refusal.message if job.refusal is not None else ""
    last = job.attempts[-1] if job.attempts else None
    verdict = last.verdict.message if last is not None and last.verdict is not None else ""
    return f"{job.name}: {job.phase}, {len(job.attempts)} attempts; {waits} {verdict}"


def runs(pid: int) -> bool:
    """Whether this process runs: one that has ended and was not reaped does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
