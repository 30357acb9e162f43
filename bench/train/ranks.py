"""The processes of one training, each on a machine of its own: ranks, and parameter servers beside them or apart."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.train import links

RANKS_PORT, SERVERS_PORT = 29_531, 29_541
LIMIT_S = 1200.0


def run(
    machines: Sequence[links.Machine], script: Path, arguments: Sequence[object], env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run `script` with one rank on each of these machines, and return the JSON object that rank 0 says last."""
    ranks: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for rank, machine in enumerate(machines):
                place = {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(len(machines)),
                    "LOCAL_RANK": "0",
                    "LOCAL_WORLD_SIZE": "1",
                    "MASTER_ADDR": machines[0].address,
                    "MASTER_PORT": str(RANKS_PORT),
                    "GLOO_SOCKET_IFNAME": machine.device,  # the machine's own name leads to another interface
                }
                command = machine.inside([sys.executable, str(script), *map(str, arguments)])
                with (Path(folder) / str(rank)).open("w") as said, (Path(folder) / f"{rank}-errors").open("w") as wrong:
                    environ = {**bare(), **place, **(env or {})}
                    ranks.append(subprocess.Popen(command, env=environ, stdout=said, stderr=wrong))
            began = time.monotonic()
            while None in (codes := [rank.poll() for rank in ranks]) and not any(codes):
                if time.monotonic() - began > LIMIT_S:
                    raise RuntimeError(f"{script.name} {' '.join(map(str, arguments))} took more than {LIMIT_S:.0f} s")
                time.sleep(0.05)
        finally:
            for each in ranks:
                end(each)
        if any(codes):
            failed = next(number for number, code in enumerate(codes) if code)
            said_last = (Path(folder) / f"{failed}-errors").read_text()[-2000:]
            raise RuntimeError(f"{script.name} {arguments}: rank {failed} ended with {codes[failed]}: {said_last}")
        found: dict[str, Any] = json.loads((Path(folder) / "0").read_text().splitlines()[-1])
        return found


SERVED = {"OARLOCK_STRATEGY": '{"kind": "ps"}'}
"""Makes workers meet at the parameter servers alone, as those of a job file with `strategy: {kind: ps}`."""


@contextlib.contextmanager
def servers(machines: Sequence[links.Machine]) -> Iterator[dict[str, str]]:
    """Run one parameter server on each of these machines. Give the variables that name them to the workers."""
    places = [f"{machine.address}:{SERVERS_PORT}" for machine in machines]
    known = {"OARLOCK_SERVERS": ",".join(places), "OARLOCK_SERVERS_TOKEN": "of this bench"}
    command = [sys.executable, "-m", "oarlock.train.servers"]
    running: list[subprocess.Popen[str]] = []
    try:
        for machine, place in zip(machines, places, strict=True):
            env = {**bare(), **known, "OARLOCK_SERVER": place}
            running.append(subprocess.Popen(machine.inside(command), env=env, stderr=subprocess.PIPE, text=True))
        for each in running:
            assert each.stderr is not None
            if not each.stderr.readline():  # it says a line when it listens
                raise RuntimeError(f"a parameter server ended with {each.wait()}")
        yield known
    finally:
        for each in running:
            end(each)


def end(process: subprocess.Popen[Any]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def bare() -> dict[str, str]:
    """Return this process's variables without those of a job."""
    return {name: value for name, value in os.environ.items() if not name.startswith("OARLOCK_")}
