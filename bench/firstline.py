"""From `oarlock run` to the first line of `python -c print`, the server running, against bare python."""

from __future__ import annotations

import subprocess
import time

from bench import server as servers
from bench import table

COMMAND = ["python", "-c", "print('here')"]


def run(pairs: int = 10) -> list[table.Row]:
    with servers.server() as server:
        first_line(server, [servers.OARLOCK, "run", "--", *COMMAND])  # warm
        more = []
        for _ in range(pairs):
            ours = first_line(server, [servers.OARLOCK, "run", "--", *COMMAND])
            more.append(ours - first_line(server, COMMAND))
    what = "from `oarlock run` to the first line, more than bare python"
    return [table.Row("firstline", what, table.median(more), "s", 0.7, detail=table.spread(more))]


def first_line(server: servers.Server, command: list[str]) -> float:
    began = time.perf_counter()
    with subprocess.Popen(
        command,
        env=server.env,
        cwd=server.work,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        took = time.perf_counter() - began
        if b"here" not in line:
            raise RuntimeError(f"the first line was {line!r}")
        process.stdout.read()
    return took
