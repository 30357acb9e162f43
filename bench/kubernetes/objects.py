"""OarlockJobs at scale: the time and the memory of a fresh list of them, and of a watch while they change.

A real API server with its etcd, and a process of its own that follows the objects as the server does.
KUBEBUILDER_ASSETS names the folder with kube-apiserver and etcd; the API server must store custom objects.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.backends.kubernetes.testcluster import apiserver

from bench import table
from oarlock.api.customresources import definitions
from oarlock.backends.kubernetes.apiserver import client, credentials, objects
from oarlock.spec import errors, resources

COUNT, CHANGES, AT_ONCE = 10_000, 1000, 32
SCRIPT = Path(__file__).parents[1] / "scripts" / "objects.py"
PATH = f"{resources.API}/namespaces/bench/oarlockjobs"


def run() -> list[table.Row]:
    folder = Path(tempfile.mkdtemp(prefix="oarlock-bench-"))
    try:
        with apiserver.running(folder / "api") as api_server:
            return asyncio.run(_measured(api_server))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _measured(api_server: apiserver.ApiServer) -> list[table.Row]:
    environ = {"KUBECONFIG": str(api_server.kubeconfig())}
    access = credentials.find(environ, clock=time.time, monotonic=time.monotonic)
    async with client.Client(access, connections=AT_ONCE) as api:
        await api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definitions.definition(), Any)
        await api.create("/api/v1/namespaces", {"metadata": {"name": "bench"}}, objects.Bare)
        await _first(api)
        made = await _side_by_side(api, "POST", range(1, COUNT))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(SCRIPT), str(COUNT), str(CHANGES)),
            env={**os.environ, **environ},
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        listed = json.loads(await process.stdout.readline())
        began = time.time()
        changed = await _side_by_side(api, "PATCH", range(CHANGES))
        followed = json.loads(await process.stdout.readline())
        await process.wait()
    what = f"{COUNT:,} OarlockJobs"
    lag_ms = max(0.0, followed["at"] - began - changed) * 1000
    detail = f"{changed:.1f} s for the writes, {followed['cpu_s']:.2f} s of processor for the follower"
    return [
        table.Row("objects", f"fresh list, {what}", listed["s"], "s", detail=f"{listed['cpu_s']:.2f} s of processor"),
        table.Row("objects", f"memory of the list, {what}", listed["mb"], "MB", detail=f"made in {made:.0f} s"),
        table.Row(
            "objects", f"last of {CHANGES:,} changes known after its answer, {what}", lag_ms, "ms", detail=detail
        ),
    ]


async def _first(api: client.Client) -> None:
    """Make the first object once the definition is served."""
    while True:
        try:
            await api.create(PATH, _body(0), objects.Bare)
        except errors.NotFound:
            await asyncio.sleep(0.1)
        else:
            return


async def _side_by_side(api: client.Client, method: str, numbers: range) -> float:
    """Make or change these objects; return the seconds that it took."""
    left = iter(numbers)

    async def some() -> None:
        for number in left:
            if method == "POST":
                await api.create(PATH, _body(number), objects.Bare)
            else:
                await api.patch(f"{PATH}/job-{number}", {"spec": {"priority": 60}}, objects.Bare)

    began = time.monotonic()
    await asyncio.gather(*(some() for _ in range(AT_ONCE)))
    return time.monotonic() - began


def _body(number: int) -> dict[str, Any]:
    return {
        "apiVersion": f"{resources.GROUP}/{resources.VERSION}",
        "kind": "OarlockJob",
        "metadata": {"name": f"job-{number}", "namespace": "bench"},
        "spec": {
            "command": "python train.py --epochs 20 --lr 0.1",
            "image": "registry.example/train:1",
            "roles": {"worker": {"count": 2, "cpus": 4, "memory": "16Gi", "gpus": 1}},
            "env": {"OMP_NUM_THREADS": "4", "SEED": str(number)},
        },
    }
