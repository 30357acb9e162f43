"""From the launch of a training's processes to its first step: by Oarlock, bare, and by torchrun.

Two workers, and elastic workers of which one has no room. The launch by Oarlock begins when the scheduler has placed
the gang; bare processes and torchrun begin with the start of the first process.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from bench import server as servers
from bench import table

SCRIPT = Path(__file__).parent / "scripts" / "firststep.py"
PAIRS = 5
WORKERS = 2


def run(pairs: int = PAIRS) -> list[table.Row]:
    ratios, rival, elastic = [], [], []
    with servers.server() as server:
        (server.work / "firststep.py").write_text(SCRIPT.read_text())
        for number in range(pairs):
            bare = _bare(server, server.home / f"bare-{number}")
            ratios.append(_ours(server, server.home / f"ours-{number}") / bare)
            rival.append(_torchrun(server, server.home / f"torchrun-{number}") / bare)
            elastic.append(_elastic(server, server.home / f"elastic-{number}"))
        theirs = _torchrun(server, server.home / "alone", "--nnodes=1:2", "--nproc-per-node=1")
    detail = f"{table.spread(ratios, '')}; torchrun {table.median(rival):.2f} x ({table.spread(rival, '')})"
    return [
        table.Row(
            "starts",
            "from the launch of two workers to their first step, against bare processes",
            table.median(ratios),
            "x",
            1.05,
            detail=detail,
        ),
        table.Row(
            "starts",
            "from the submission of elastic workers to the first step, with room for one of two",
            table.median(elastic),
            "s",
            3.5,
            detail=f"{table.spread(elastic)}; torchrun with one of two nodes {theirs:.1f} s",
        ),
    ]


def _bare(server: servers.Server, told: Path) -> float:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = server.env | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(WORKERS)}
    env |= {"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": str(WORKERS)}
    began = time.time()
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(told)], env=env | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(WORKERS)
    ]
    codes = [each.wait() for each in ranks]
    if any(codes):
        raise RuntimeError("a bare rank failed")
    return float(told.read_text()) - began


def _torchrun(server: servers.Server, told: Path, *given: str) -> float:
    options = given or ("--standalone", f"--nproc-per-node={WORKERS}")
    if given:
        options = (*given, "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", f"--rdzv-id={os.getpid()}")
    command = [sys.executable, "-m", "torch.distributed.run", *options, str(SCRIPT), str(told)]
    began = time.time()
    subprocess.run(command, env=server.env | {"OMP_NUM_THREADS": "1"}, check=True, capture_output=True)
    return float(told.read_text()) - began


def _ours(server: servers.Server, told: Path) -> float:
    server.run(
        "run",
        "--workers",
        str(WORKERS),
        "--name",
        told.name,
        "--",
        "python",
        "firststep.py",
        str(told),
        cwd=server.work,
    )
    with server.client() as client:
        attempts: list[dict[str, Any]] = client.get(f"/jobs/{told.name}").raise_for_status().json()["attempts"]
    return float(told.read_text()) - float(attempts[-1]["started_at"])


def _elastic(server: servers.Server, told: Path) -> float:
    """Two workers, each of which takes more than half of the cores."""
    cores = os.cpu_count() or 1
    job = {
        "name": told.name,
        "command": f"python firststep.py {told}",
        "roles": {"worker": {"count": 2, "min": 1, "cpus": cores / 2 + 0.5, "on_failure": "restart"}},
    }
    (server.work / "elastic.yaml").write_text(yaml.safe_dump(job))
    began = time.time()
    server.run("submit", "elastic.yaml", cwd=server.work)
    server.wait_for(told.name)
    return float(told.read_text()) - began
