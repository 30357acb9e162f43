"""Parameter servers: a push and a pull against raw sockets and gRPC, and workers of different speed.

The same number of bytes goes there and back over plain TCP sockets, and by gRPC, in the same run, in turn.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench import table
from bench.train import links, ranks

SCRIPT = Path(__file__).parents[1] / "scripts" / "serving.py"
SIZE = 25 << 20
PORT = 29_571
TIMES = 8
SLEEP_S = 0.1
SLOWER = 5


def run(rounds: int = 3) -> list[table.Row]:
    rows = []
    with links.link(1000) as machines:
        pairs = [_pair("raw", machines[0], machines[1]) for _ in range(rounds)]
    rows.append(_against("1 Gbit/s", pairs, 0.9))
    pairs = [_pair("raw", None, None) for _ in range(rounds)]
    rows.append(_against("one host", pairs, None))
    rates = [2 * SIZE / ours / 1e9 for _, ours in pairs]
    what = "parameter server, push and pull of 25 MB on one host"
    rows.append(table.Row("serving", what, table.median(rates), "GB/s", 5.0, True, table.spread(rates, "GB/s")))
    pairs = [_pair("grpc", None, None) for _ in range(rounds)]
    rows.append(_against_grpc(pairs))
    return rows + _speeds(rounds)


def _against_grpc(pairs: Sequence[tuple[float, float]]) -> table.Row:
    ratios = [theirs / ours for theirs, ours in pairs]
    detail = f"{table.spread(ratios, '')}; gRPC {pairs[0][0] * 1e3:.0f} ms; load {os.getloadavg()[0]:.0f}"
    what = "parameter server, push and pull of 25 MB, one host, times as fast as gRPC"
    return table.Row("serving", what, table.median(ratios), "x", 5.0, True, detail)


def _pair(other: str, server: links.Machine | None, worker: links.Machine | None) -> tuple[float, float]:
    """Return the seconds there and back by the `other` way (raw sockets, gRPC) and with a parameter server."""
    host = server.address if server else "127.0.0.1"
    with _process(server, [f"{other}-server", str(PORT)], {}):
        theirs = _seconds(worker, [other, host, str(PORT), str(SIZE), str(TIMES)], {})
    with _server(server, host) as known:
        ours = _seconds(worker, ["ps", str(SIZE), str(TIMES)], known)
    return statistics.median(theirs[2:]), statistics.median(ours[2:])


def _against(where: str, pairs: Sequence[tuple[float, float]], reach: float | None) -> table.Row:
    ratios = [theirs / ours for theirs, ours in pairs]
    detail = f"{table.spread(ratios, '')}; raw {pairs[0][0] * 1e3:.0f} ms; load {os.getloadavg()[0]:.0f}"
    what = f"parameter server, push and pull of 25 MB, {where}, of the speed of raw TCP"
    return table.Row("serving", what, table.median(ratios), "x", reach, True, detail)


def _speeds(rounds: int) -> list[table.Row]:
    """Three workers with sleeps as computing: all alike, and one of them slower."""
    kept, gained, spared = [], [], []
    for _ in range(rounds):
        alike, one_slow = _workers("async", 1), _workers("async", SLOWER)
        kept.append(alike / one_slow)
        lockstep = _workers("sync", SLOWER)
        gained.append(lockstep / one_slow)
        spared.append(lockstep / _workers("backup", SLOWER))
    load = f"load {os.getloadavg()[0]:.0f}"
    what = f"asynchronous parameter server with one worker {SLOWER} times slower: speed that the others keep"
    backup = f"one worker {SLOWER} times slower: speed of the others with a backup worker, against lockstep"
    other = f"one worker {SLOWER} times slower: speed of the others without lockstep, against lockstep"
    return [
        table.Row("serving", what, 100 * table.median(kept), "%", 90.0, True, f"{table.spread(kept, '')}; {load}"),
        table.Row("serving", backup, table.median(spared), "x", None, True, f"{table.spread(spared, '')}; {load}"),
        table.Row("serving", other, table.median(gained), "x", None, True, f"{table.spread(gained, '')}; {load}"),
    ]


def _workers(kind: str, slower: int) -> float:
    """Return the median step of the fast ones of three workers."""
    with _server(None, "127.0.0.1") as known:
        running = []
        for rank in range(3):
            sleep_s = SLEEP_S * (slower if rank == 2 else 1)
            times = 40 if kind == "sync" else round(40 * SLEEP_S / sleep_s)
            place = {**known, "RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
            running.append(_start(None, ["steps", kind, str(sleep_s), str(times)], place))
        try:
            said = [json.loads(each.communicate(timeout=300)[0].splitlines()[-1]) for each in running]
        finally:
            for each in running:
                _end(each)
    return statistics.median([seconds for each in said[:2] for seconds in each[5:]])


@contextmanager
def _server(machine: links.Machine | None, host: str) -> Iterator[dict[str, str]]:
    """Run a parameter server, and give its address and token to the workers."""
    known = {"OARLOCK_SERVERS": f"{host}:{PORT}", "OARLOCK_SERVERS_TOKEN": "of this bench"}
    command = [sys.executable, "-m", "oarlock.train.servers"]
    with _running(_start(machine, command, {**known, "OARLOCK_SERVER": f"{host}:{PORT}"}, whole=True)):
        yield {**known, **ranks.SERVED}


@contextmanager
def _process(machine: links.Machine | None, arguments: Sequence[str], env: Mapping[str, str]) -> Iterator[None]:
    with _running(_start(machine, arguments, env)):
        yield


@contextmanager
def _running(process: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    if process.stdout:
        process.stdout.close()


def _seconds(machine: links.Machine | None, arguments: Sequence[str], env: Mapping[str, str]) -> list[float]:
    process = _start(machine, arguments, env)
    try:
        said = process.communicate(timeout=300)[0]
    finally:
        _end(process)
    if process.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with {process.returncode}")
    found: list[float] = json.loads(said.splitlines()[-1])
    return found


def _start(
    machine: links.Machine | None, arguments: Sequence[str], env: Mapping[str, str], *, whole: bool = False
) -> subprocess.Popen[str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("OARLOCK_")}
    command = [*arguments] if whole else [sys.executable, str(SCRIPT), *arguments]
    command = machine.inside(command) if machine else command
    return subprocess.Popen(command, env={**ours, **env}, stdout=subprocess.PIPE, text=True)
