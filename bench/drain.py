"""1,000 queued jobs of `true`, drained."""

from __future__ import annotations

import asyncio
import time

import httpx

from bench import server as servers
from bench import table

JOBS = 1000


def run(jobs: int = JOBS) -> list[table.Row]:
    with servers.server() as server:
        began = time.perf_counter()
        ids = asyncio.run(_submit(server, jobs))
        submitted = time.perf_counter() - began
        phases = _drained(server, ids)
        took = time.perf_counter() - began
    lost = jobs - phases.get("COMPLETED", 0)
    detail = f"{jobs} submitted in {submitted:.1f} s, all ended after {took:.1f} s: {phases}"
    return [
        table.Row("drain", f"{jobs} jobs of `true`, drained", jobs / took, "jobs/s", 10, at_least=True, detail=detail),
        table.Row("drain", f"of {jobs} jobs of `true`, not completed", lost, "jobs", 0),
    ]


async def _submit(server: servers.Server, jobs: int) -> list[str]:
    body = {"spec": {"command": "true", "framework": "plain", "roles": {"worker": {"cpus": 0.1}}}}
    async with server.async_client(16) as client:
        gate = asyncio.Semaphore(16)

        async def one(number: int) -> str:
            async with gate:
                answer = await client.post("/jobs", json=body, headers={"Idempotency-Key": f"drain-{number}"})
                answer.raise_for_status()
                return str(answer.json()["id"])

        return await asyncio.gather(*[one(number) for number in range(jobs)])


def _drained(server: servers.Server, ids: list[str], timeout_s: float = 600) -> dict[str, int]:
    """Return the number of jobs by phase, once all have ended."""
    deadline = time.monotonic() + timeout_s
    with server.client() as client:
        while True:
            counts = _count(client, set(ids))
            if not counts.keys() - {"COMPLETED", "FAILED", "CANCELED"} or time.monotonic() > deadline:
                return counts
            time.sleep(0.5)


def _count(client: httpx.Client, ids: set[str]) -> dict[str, int]:
    """Only jobs that have not ended are paged through, so that measuring costs little."""
    counts: dict[str, int] = {}
    live = 0
    after = None
    for phase in ("QUEUED", "DEPLOYING", "DOWNLOADING", "PROCESSING", "STORING"):
        page = client.get("/jobs", params={"phase": phase, "limit": 1}).raise_for_status().json()
        live += len(page["items"])
    if live:
        return {"RUNNING": live}
    while True:
        params = {"limit": 1000} | ({"after": after} if after else {})
        page = client.get("/jobs", params=params).raise_for_status().json()
        for job in page["items"]:
            if job["id"] in ids:
                counts[job["phase"]] = counts.get(job["phase"], 0) + 1
        after = page.get("next")
        if not after:
            return counts
