"""Real processes that train together, without paying for an import of torch each time.

A fork server has imported torch once, and torch._dynamo too, which the first optimizer of a process imports and which
takes as long again as torch itself. Every member of a crew is a fork of it, with the environment that torchrun would
give it. What a member prints goes to a file. A member that hangs is killed with its crew, and the test fails.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing import connection
from pathlib import Path
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "torch",
        "torch._dynamo",
        "torch.distributed",
        "torch.distributed.fsdp",
        "numpy",
        "pytest",
        "oarlock.train.session",
        "tests.train.scripts",
    ]
)
_ports = iter(range(20_000 + os.getpid() % 100 * 100, 32_000))


def run(
    target: Callable[..., None],
    *args: Any,
    folder: Path,
    world_size: int = 2,
    env: Mapping[str, str] | None = None,
    env_of_rank: Mapping[int, Mapping[str, str]] | None = None,
    timeout_s: float = 240.0,
    ends_together: bool = False,
) -> list[int]:
    """Run target(*args) as every rank, to the end. Returns the exit codes by rank, -N for signal N; output is in
    folder/rank-K.txt. With `ends_together` the death of a member ends the others, as the platform ends an attempt.
    """
    address = (
        {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world_size)}
        if world_size > 1
        else {}
    )
    crew = []
    for rank in range(world_size):
        place = {**address, "RANK": str(rank), "LOCAL_RANK": str(rank)} if world_size > 1 else {}
        environment = {**place, **(env or {}), **(env_of_rank or {}).get(rank, {})}
        crew.append(_CONTEXT.Process(target=_member, args=(target, args, environment, folder / f"rank-{rank}.txt")))
    for member in crew:
        member.start()
    deadline = time.monotonic() + timeout_s
    left = {member.sentinel: member for member in crew}
    while left and (ended := connection.wait(left, max(0.1, deadline - time.monotonic()))):
        ends = [left.pop(sentinel) for sentinel in ended]  # type: ignore[call-overload]
        if ends_together and any(member.exitcode for member in ends):
            for member in left.values():
                member.kill()
    for member in crew:
        member.join(0.1)
    hung = [rank for rank, member in enumerate(crew) if member.exitcode is None]
    for member in crew:
        if member.exitcode is None:
            member.kill()
            member.join()
    assert not hung, f"ranks {hung} hang\n{output(folder, world_size)}"
    return [member.exitcode for member in crew]


def output(folder: Path, world_size: int = 2) -> str:
    """Return the output of the members, for the message of a failing test."""
    texts = ((folder / f"rank-{rank}.txt") for rank in range(world_size))
    return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in texts if path.exists())


def _member(target: Callable[..., None], args: tuple[Any, ...], environment: Mapping[str, str], log: Path) -> None:
    import torch

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    for name in [name for name in os.environ if name.startswith("OARLOCK_")]:
        del os.environ[name]
    os.environ.update(environment)
    torch.set_num_threads(1)
    target(*args)


def free_port() -> int:
    for port in _ports:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")
