"""From the death of a worker to the next step of the others: in an elastic job, and where the gang restarts; the latter
also by torchrun.

A worker is killed by SIGKILL while three train in an elastic job, or two in a gang. The processes of the gang have no
limit of processor time, as those of torchrun have none: both take what there is to start again. The clock ends with the
next step that any process has made. Steps lost are those that were made before and are made again. torchrun gets the
setting without which it often meets the addresses of the processes before.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench import server as servers
from bench import table

SCRIPT = Path(__file__).parent / "scripts" / "elastic.py"
KILLS = 7
GOAL_S = 0.8
WAIT_S = 300.0

JOB = """
name: {name}
command: python elastic.py {diaries} {stop}
roles: {{worker: {role}}}
max_restarts: 100
"""
ELASTIC, GANG = "{count: 3, min: 1, cpus: 0.3, on_failure: restart}", "{count: 2}"


def run(kills: int = KILLS) -> list[table.Row]:
    with servers.server() as server:
        (server.work / "elastic.py").write_text(SCRIPT.read_text())
        elastic = _killed(server, "elastic", ELASTIC, workers=3, kills=kills)
        gang, torchrun = [], []
        for number in range(kills):
            gang += _killed(server, f"gang-{number}", GANG, workers=2, kills=1)
            torchrun += _torchrun(server, f"torchrun-{number}")
    return [
        _row("a worker's SIGKILL to the next step, elastic workers", elastic, GOAL_S),
        _row("a worker's SIGKILL to the next step, restart of the gang", gang, None),
        _row("a worker's SIGKILL to the next step, torchrun", torchrun, None),
        table.Row(
            "elastic",
            "restart of the gang against torchrun, a worker's SIGKILL to the next step",
            table.median([ours / theirs for (ours, _), (theirs, _) in zip(gang, torchrun, strict=True)]),
            "x",
            1.0,
            detail="in turn",
        ),
    ]


def _row(name: str, found: list[tuple[float, int]], goal: float | None) -> table.Row:
    seconds = [each for each, _ in found]
    lost = max(steps for _, steps in found)
    detail = f"{table.spread(seconds, 's')}; at most {lost} steps made again"
    return table.Row("elastic", name, table.median(seconds), "s", goal, detail=detail)


def _torchrun(server: servers.Server, name: str) -> list[tuple[float, int]]:
    diaries, stop = server.home / f"{name}-diaries", server.home / f"{name}-stop"
    diaries.mkdir()
    options = ["--standalone", "--nproc-per-node=2", "--max-restarts=9", str(server.work / "elastic.py")]
    env = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    env["OARLOCK_CHECKPOINTS"] = str(server.home / f"{name}-checkpoints")
    command = [sys.executable, "-m", "torch.distributed.run", *options, str(diaries), str(stop)]
    with subprocess.Popen(command, env=server.env | env, stderr=subprocess.DEVNULL) as launcher:
        try:
            return _kill(diaries, 1, 2)
        finally:
            stop.touch()
            launcher.wait()


def _killed(server: servers.Server, name: str, role: str, *, workers: int, kills: int) -> list[tuple[float, int]]:
    """Return, for each kill, the seconds to the next step and the number of steps that were lost."""
    diaries, stop = server.home / f"{name}-diaries", server.home / f"{name}-stop"
    diaries.mkdir()
    (server.work / f"{name}.yaml").write_text(JOB.format(name=name, diaries=diaries, stop=stop, role=role))
    server.run("submit", f"{name}.yaml", cwd=server.work)
    found = _kill(diaries, kills, workers)
    stop.touch()
    server.wait_for(name)
    return found


def _kill(diaries: Path, kills: int, workers: int) -> list[tuple[float, int]]:
    found = []
    killed_at = 0.0
    for number in range(kills):
        victim = _wait(lambda number=number, since=killed_at: _victim(diaries, str(number % workers), since, workers))
        time.sleep(0.5 + 0.05 * number)
        before = max(step["step"] for steps in _read(diaries).values() for step in steps)
        killed_at = time.time()
        os.kill(victim, signal.SIGKILL)
        step = _wait(lambda killed_at=killed_at, victim=victim: _next(diaries, killed_at, victim, workers))
        found.append((step["at"] - killed_at, max(0, before - step["step"] + 1)))
    return found


def _victim(diaries: Path, task: str, since: float, workers: int) -> int | None:
    """Return the pid of the task's process, once all workers have trained together since then."""
    last = {pid: steps[-1] for pid, steps in _read(diaries).items()}
    together = {each["task"]: pid for pid, each in last.items() if each["ranks"] == workers and each["at"] > since}
    return together[task] if len(together) == workers else None


def _next(diaries: Path, killed_at: float, victim: int, workers: int) -> dict[str, Any] | None:
    """Return the first step that another process has made without the victim."""
    made = [
        step
        for pid, steps in _read(diaries).items()
        if pid != victim
        for last, step in zip([None, *steps], steps, strict=False)
        if step["at"] > killed_at and step["made"] and (step["ranks"] < workers or last is None)
    ]
    return min(made, key=lambda step: step["at"], default=None)


def _read(diaries: Path) -> dict[int, list[dict[str, Any]]]:
    found = {}
    for path in diaries.iterdir():
        with contextlib.suppress(FileNotFoundError):  # seen in a sandbox: listed, and not there yet
            steps = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
            if steps:
                found[int(path.name)] = steps
    return found


def _wait(look: Any) -> Any:
    deadline = time.monotonic() + WAIT_S
    while (found := look()) is None:
        if time.monotonic() > deadline:
            raise RuntimeError(f"nothing was seen within {WAIT_S:.0f} s")
        time.sleep(0.01)
    return found
