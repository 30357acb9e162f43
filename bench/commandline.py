"""How long a person waits for `oarlock --help` and `oarlock ps`."""

from __future__ import annotations

import time

from bench import server as servers
from bench import table


def run(runs: int = 15) -> list[table.Row]:
    rows = []
    with servers.server() as server:
        server.run("run", "--detach", "--", "sleep", "60", cwd=server.work)
        for arguments, reach in (("--help", 0.3), ("ps", 0.5)):
            seconds = []
            for _ in range(runs):
                began = time.perf_counter()
                server.run(arguments)
                seconds.append(time.perf_counter() - began)
            rows.append(
                table.Row(
                    "commandline",
                    f"`oarlock {arguments}`",
                    table.median(seconds),
                    "s",
                    reach,
                    detail=table.spread(seconds),
                )
            )
    return rows
