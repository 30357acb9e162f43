"""Two processes that train on the GPU of this machine, as a test's crew.

NCCL refuses two ranks on one device of one host. So each rank says that it is a host of its own (NCCL_HOSTID), and they
exchange through sockets of the loopback interface. Shares of a GPU exchange through gloo, as `gpus: 0.5` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.train import crew

NCCL, SHARES = "nccl", "shares"
KINDS = (NCCL, SHARES)


def run(kind: str, target: Callable[..., None], *args: Any, folder: Path, env: Mapping[str, str] | None = None) -> str:
    """Run target(*args) in two processes, to the end. Return their output."""
    codes = crew.run(
        target, *args, folder=folder, env_of_rank={rank: place(kind, rank) | dict(env or {}) for rank in (0, 1)}
    )
    text = crew.output(folder)
    assert codes == [0, 0], text
    return text


def place(kind: str, rank: int) -> dict[str, str]:
    """Return the variables of one rank."""
    if kind == SHARES:
        return {"OARLOCK_GPU_FRACTION": "0.4", "LOCAL_WORLD_SIZE": "2"}
    return {
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NCCL_HOSTID": f"host-{rank}",
        "OARLOCK_SHARED_MEMORY": "0",  # hosts share none
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
    }
