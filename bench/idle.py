"""The cost of an idle server, and of an agent with a process that sleeps."""

from __future__ import annotations

import time

from bench import processes, table
from bench import server as servers

SECONDS = 30


def run() -> list[table.Row]:
    with servers.server() as server:
        time.sleep(3)
        server_cpu = _share(server.pid)
        server_mb = processes.memory_mb(server.pid)
        server.run("run", "--detach", "--name", "sleeper", "--", "sleep", "600", cwd=server.work)
        time.sleep(4)
        agents = [pid for pid in processes.find(".pyz") if pid in processes.find(str(server.home))]
        agent_cpu = _share(agents[0])
        agent_mb = processes.memory_mb(agents[0])
        server.run("cancel", "sleeper")
    how = f"over {SECONDS} s"
    return [
        table.Row("idle", "idle server, CPU", server_cpu, "% of a core", 1, detail=how),
        table.Row("idle", "idle server, memory", server_mb, "MB", 120, detail="resident"),
        table.Row("idle", "one agent, CPU", agent_cpu, "% of a core", 1, detail=how),
        table.Row("idle", "one agent, memory", agent_mb, "MB", 15, detail="resident"),
    ]


def _share(pid: int) -> float:
    before = processes.cpu_s(pid)
    time.sleep(SECONDS)
    return 100 * (processes.cpu_s(pid) - before) / SECONDS
