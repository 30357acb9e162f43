"""A process of a trial of `oarlock advise`, on a machine in miniature of its own.

placed.py COMMAND...

BENCH_MACHINES has the machines: half of them for the ranks, the others for parameter servers. The first rank starts the
servers, which end with the processes of its trial.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.train import links, ranks

machines = links.read(os.environ["BENCH_MACHINES"])
workers, others = machines[: len(machines) // 2], machines[len(machines) // 2 :]
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
here = workers[rank]
env = {
    **os.environ,
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": workers[0].address,
    "GLOO_SOCKET_IFNAME": here.device,
}
strategy = json.loads(os.environ["OARLOCK_STRATEGY"])
if size > 1 and strategy.get("kind") == "ps":
    servers = [(each, f"{each.address}:{ranks.SERVERS_PORT}") for each in others[: strategy["servers"]]]
    known = {"OARLOCK_SERVERS": ",".join(place for _, place in servers), "OARLOCK_SERVERS_TOKEN": "of this bench"}
    env |= known
    for machine, place in servers if rank == 0 else ():
        command = machine.inside([sys.executable, "-m", "oarlock.train.servers"])
        subprocess.Popen(command, env={**ranks.bare(), **known, "OARLOCK_SERVER": place})
command = here.inside(sys.argv[1:])
os.execvpe(command[0], command, env)
