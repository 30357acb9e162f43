"""Parameter servers as children of the chief's process, where no task of the job runs them: under torchrun."""

from __future__ import annotations

import atexit
import os
import secrets
import socket
import subprocess
import sys
from pathlib import Path

from oarlock.train import environment, errors
from oarlock.train.servers import addresses

_children: list[subprocess.Popen[str]] = []


def start(count: int) -> addresses.Addresses:
    """Start `count` servers, which take the GPUs of this machine in turn. They end with this process, which waits until
    no other worker needs them.
    """
    token = secrets.token_hex(32)
    host = _host()
    package = str(Path(__file__).parents[3])
    path = os.pathsep.join(each for each in (package, os.environ.get("PYTHONPATH")) if each)
    environ = {**os.environ, "PYTHONPATH": path, "OARLOCK_SERVER": f"{host}:0"}
    started = []
    for number in range(count):
        child = subprocess.Popen(
            [sys.executable, "-m", "oarlock.train.servers", "--child", str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environ,
            text=True,
        )
        _children.append(child)
        assert child.stdin is not None
        child.stdin.write(f"{token}\n")
        child.stdin.flush()
        started.append(child)
    atexit.register(_end)
    return addresses.Addresses(tuple(f"{host}:{_port(child)}" for child in started), token, replaced=False)


def _host() -> str:
    """Return the address of this host at which all processes reach the chief."""
    given = environment.Processes.read()
    if given.neighbours == given.world_size:
        return "127.0.0.1"
    return socket.gethostbyname(os.environ.get("MASTER_ADDR", "127.0.0.1"))


def _port(child: subprocess.Popen[str]) -> int:
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise errors.ServerError(f"a parameter server did not start: it ended with code {child.wait()}")
    return int(line)


def _end() -> None:
    for child in _children:
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                stream.close()
        child.wait()
    _children.clear()
