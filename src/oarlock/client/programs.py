"""The programs of this machine that jobs use: the `python` of a PATH, and the tool of the GPU driver.

`oarlock doctor` reads them in the user's shell, and a server that runs jobs on its own machine in its environment.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from pathlib import Path

from oarlock.spec import bodies, errors

TIMEOUT_S = 30.0
_CODE = "import sys, importlib.util as u; print(sys.version.split()[0], u.find_spec('torch') is not None)"


def find(path: str | None) -> bodies.Programs:
    """Return what the programs on a PATH tell. Blocks for up to a minute."""
    return bodies.Programs(python=python(path), gpus=gpus(path))


def python(path: str | None) -> bodies.Python:
    found = shutil.which("python", path=path)
    if found is None:
        return bodies.Python()
    try:
        done = _asked([found, "-c", _CODE])
        done.check_returncode()
        version, has_torch = done.stdout.split()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return bodies.Python(path=found, fault=errors.words(error))
    return bodies.Python(path=found, version=version, torch=has_torch == "True")


def gpus(path: str | None) -> bodies.Driver:
    tool = shutil.which("nvidia-smi", path=path)
    if tool is None:
        return bodies.Driver(device=Path("/dev/nvidia0").exists())
    command = [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = _asked(command)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return bodies.Driver(tool=tool, fault=errors.words(error))
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()
        return bodies.Driver(tool=tool, silence=said[0] if said else "nvidia-smi failed without a message")
    return bodies.Driver(tool=tool, devices=tuple(done.stdout.strip().splitlines()))


def _asked(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a program. Raises TimeoutExpired; a thread then waits for the end of a program that no signal ends."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, cwd="/")
    try:
        out, err = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        threading.Thread(target=process.wait, name="unanswered-program", daemon=True).start()
        raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)
