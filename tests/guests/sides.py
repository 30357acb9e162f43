"""The two sides of a comparison: a script under its own launcher, and the same script under `oarlock run`.

What a guest prints is compared without the ranks' prefixes and in sorted order: which rank prints first is chance.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from importlib import util
from pathlib import Path

import pytest
from tests.e2e import shell as shells

INSTALLED = Path(__file__).parents[2] / ".venv" / ".guests.log"
"""The file that `make test-guests` wrote when it installed the guests."""

# Open MPI refuses root without these. Threads are few, so that sums come out in one order on both sides.
SURROUNDINGS = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1"}


RESULTS = ("rank ", "chief ", "worker ", "ps ", "evaluator ", "fork ", "spawn ")
"""How the lines begin that the scripts print."""

PATIENCE_S = 300
"""The longest that one run may take: importing torch takes half a minute where a machine has much to do."""


def need(*modules: str) -> None:
    """Fail the test with pip's reason where one of these modules is not installed."""
    missing = [module for module in modules if util.find_spec(module) is None]
    if missing:
        said = INSTALLED.read_text(errors="replace").strip()[-2000:] if INSTALLED.exists() else "never asked"
        pytest.fail(f"not installed: {', '.join(missing)}; `make test-guests` installs them. pip said: {said}", False)


GLOO_FAULT = "terminate called without an active exception"
"""Said by a rank that did all its work and aborts while it ends: a thread of torch's gloo drops its last tensor
after Python has begun to end. The fault is torch's, under every launcher, and rare: such a run is repeated."""

RUNS = 3
"""The most runs for that reason."""


class Sides:
    """`direct` and `oarlock` return the results that were printed, as sorted lines without prefixes."""

    def __init__(self, folder: Path) -> None:
        self.shell = shells.Shell(folder)
        self.shell.env |= SURROUNDINGS

    def direct(self, *command: str, code: int = 0, env: dict[str, str] | None = None) -> list[str]:
        """Run the command in the scripts' directory as a user without Oarlock does."""

        def run() -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                command,
                env={**self.outside(), **(env or {})},
                cwd=self.shell.work,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                stdin=subprocess.DEVNULL,
                check=False,
            )

        return _results(run, code)

    def oarlock(self, *arguments: str, code: int = 0) -> list[str]:
        """`oarlock run ARGUMENTS`, with the surroundings of `direct`."""
        named = [word for name, value in SURROUNDINGS.items() for word in ("--env", f"{name}={value}")]
        command = ("run", *named, "--cpus", "0.5", *arguments)
        return _results(lambda: self.shell.do(*command, code=None, timeout_s=PATIENCE_S), code)

    def outside(self) -> dict[str, str]:
        return {name: value for name, value in self.shell.env.items() if not name.startswith("OARLOCK_")}


def _results(run: Callable[[], subprocess.CompletedProcess[str]], code: int) -> list[str]:
    """The results of a run that ended with this exit code; a run that met torch's fault is made again."""
    for _ in range(RUNS):
        done = run()
        if done.returncode == code or GLOO_FAULT not in done.stdout + done.stderr:
            break
    assert done.returncode == code, f"{done.args} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return lines(done.stdout)


def lines(text: str) -> list[str]:
    """The results in it, sorted, without the prefixes of ranks (`worker-1 | `).

    Other lines come from libraries.
    """
    said = (line.partition(" | ")[2] or line for line in text.splitlines())
    return sorted(line for line in said if line.startswith(RESULTS))


def alive(marked: str) -> list[int]:
    """The processes with this mark in their environment: those that a script has left behind."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            environment = path.read_bytes()
        except OSError:
            continue  # it has ended, or is not ours
        pid = int(path.parent.name)
        if os.fsencode(marked) in environment and shells.runs(pid):
            found.append(pid)
    return found
