"""The command `python -m oarlock.train.servers`: a parameter server, which the role `ps` runs.

The settings come from variables, because arguments can be read by everybody on the machine: OARLOCK_SERVER (the
address), OARLOCK_SERVERS_TOKEN. With `--child N` the process serves its parent on a free port, as the parent's server
N: it reads the token from its input, writes the port to its output, and ends when its input has ended and no worker is
connected any more.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import torch

from oarlock.train.servers.model import optimizers
from oarlock.train.servers.process import server, snapshots, standby

_OTHERS_S = 30.0
"""For so long the servers of a chief that has ended serve the other workers."""


def main(arguments: list[str]) -> int:
    child = arguments[:1] == ["--child"]
    address = os.environ.get("OARLOCK_SERVER", "")
    token = sys.stdin.readline().strip() if child else os.environ.get("OARLOCK_SERVERS_TOKEN", "")
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit() and token):
        sys.stderr.write(
            "oarlock.train: OARLOCK_SERVER (HOST:PORT) and OARLOCK_SERVERS_TOKEN are not set. Oarlock sets them for "
            "the role ps of a job whose framework is torch.\n"
        )
        return 2
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # each connection has a thread, and workers beside need the other cores
    device = _device(int(arguments[1] if child else os.environ.get("OARLOCK_PROCESS") or 0))
    number = None if child else _number(address)
    snapshot = _snapshot(number) if number is not None else None
    kept = standby.place(token, number) if number is not None else None
    made = server.Server((host.strip("[]"), int(port)), token, device=device, snapshot=snapshot, kept=kept)
    threading.Thread(target=optimizers.prepare, daemon=True).start()  # workers may connect meanwhile
    signal.signal(signal.SIGTERM, lambda *_: _end(made))
    if child:
        sys.stdout.write(f"{made.port}\n")
        sys.stdout.flush()
        threading.Thread(target=_end_with_parent, args=(made,), daemon=True).start()
    else:
        sys.stderr.write(f"oarlock.train: parameter server at {host}:{made.port}, parameters on {device}\n")
    made.serve()
    return 0


def _device(number: int) -> str:
    """Return the device of the parameters: the servers of one task, or of one parent, take its GPUs in turn."""
    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{number % torch.cuda.device_count()}"


def _number(address: str) -> int | None:
    """Return this server's number among those of the attempt."""
    servers = os.environ.get("OARLOCK_SERVERS", "").split(",")
    return servers.index(address) if address in servers else None


def _snapshot(number: int) -> Path | None:
    """Return the file of this server's own checkpoint, where the job has a directory of checkpoints."""
    directory = os.environ.get("OARLOCK_CHECKPOINTS")
    return snapshots.place(directory, int(os.environ.get("OARLOCK_ATTEMPT") or 1), number) if directory else None


def _end(served: server.Server) -> None:
    served.service.forget()
    os._exit(0)


def _end_with_parent(served: server.Server) -> None:
    sys.stdin.read()
    served.await_end(_OTHERS_S)  # the chief's end is not that of the other workers
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
