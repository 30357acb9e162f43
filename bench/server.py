"""A server of our own in a home of its own, and the commands that talk to it, as a user's shell would start them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

OARLOCK = str(Path(sys.executable).parent / "oarlock")


class Server:
    """A running local server. `env` is what its users' shells have."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("OARLOCK_")}
        self.env["OARLOCK_HOME"] = str(home)
        self.env.pop("PYTHONUNBUFFERED", None)  # the measurement decides
        self.env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{self.env.get('PATH', '')}"
        self.work = home / "work"  # an empty directory to submit from

    def start(self, *flags: str) -> None:
        self.run("up", "--detach", *flags)
        self.work.mkdir(exist_ok=True)
        address = json.loads((self.home / "server.json").read_text())
        self.url, self.pid = address["url"], int(address["pid"])
        self.token = (self.home / "token").read_text().strip()

    def run(self, *arguments: str, check: bool = True, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [OARLOCK, *arguments],
            env=self.env,
            cwd=cwd or self.home,
            check=False,
            capture_output=True,
            text=True,
            timeout=900,
            stdin=subprocess.DEVNULL,
        )
        if check and done.returncode != 0:
            raise RuntimeError(f"oarlock {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
        return done

    def client(self) -> httpx.Client:
        return httpx.Client(
            base_url=self.url + "/api/v1",
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=60,
            trust_env=False,
        )

    def async_client(self, connections: int = 100) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self.url + "/api/v1",
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=60,
            trust_env=False,
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        )

    def wait_for(self, job: str, timeout_s: float = 600) -> dict[str, object]:
        """Return the job once it has ended."""
        deadline = time.monotonic() + timeout_s
        with self.client() as client:
            while time.monotonic() < deadline:
                found: dict[str, object] = client.get(f"/jobs/{job}").raise_for_status().json()
                if found["phase"] in ("COMPLETED", "FAILED", "CANCELED"):
                    return found
                time.sleep(0.2)
        raise TimeoutError(f"{job} has not ended after {timeout_s} s")


@contextlib.contextmanager
def server(*flags: str) -> Iterator[Server]:
    home = Path(tempfile.mkdtemp(prefix="oarlock-bench-"))
    one = Server(home)
    try:
        one.start(*flags)
        yield one
    finally:
        one.run("down", check=False)
        shutil.rmtree(home, ignore_errors=True)
