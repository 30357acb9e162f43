"""Submits with 10,000 jobs stored: 100 a second in an open loop, then 64 clients as fast as they can."""

from __future__ import annotations

import asyncio
import time

from bench import server as servers
from bench import table

STORED, RATE, SECONDS, CLIENTS, EACH = 10_000, 100, 20, 64, 30
# A job that waits: it asks for what is never free at once, so that nothing runs beside the measurement.
BODY = {"spec": {"command": "sleep 3600", "framework": "plain", "roles": {"worker": {"cpus": 1}}}}


def run() -> list[table.Row]:
    with servers.server() as server:
        return asyncio.run(_measured(server))


async def _measured(server: servers.Server) -> list[table.Row]:
    async with server.async_client(CLIENTS) as client:
        failures: list[str] = []

        async def submit(key: str) -> float:
            began = time.perf_counter()
            answer = await client.post("/jobs", json=BODY, headers={"Idempotency-Key": key})
            if answer.status_code != 201:
                failures.append(f"{answer.status_code}: {answer.text[:200]}")
            return time.perf_counter() - began

        gate = asyncio.Semaphore(32)

        async def stored(number: int) -> None:
            async with gate:
                await submit(f"stored-{number}")

        await asyncio.gather(*[stored(number) for number in range(STORED)])
        open_loop = []
        began = time.perf_counter()
        for number in range(RATE * SECONDS):
            await asyncio.sleep(max(0.0, began + number / RATE - time.perf_counter()))
            open_loop.append(asyncio.create_task(submit(f"open-{number}")))
        latencies = await asyncio.gather(*open_loop)

        async def hammer(client_number: int) -> list[float]:
            return [await submit(f"fast-{client_number}-{number}") for number in range(EACH)]

        began = time.perf_counter()
        fast = [latency for found in await asyncio.gather(*[hammer(n) for n in range(CLIENTS)]) for latency in found]
        took = time.perf_counter() - began
        asked = STORED + RATE * SECONDS + CLIENTS * EACH
        count = await _count(client)
    p50, p99 = table.percentile(latencies, 0.5) * 1000, table.percentile(latencies, 0.99) * 1000
    detail = f"median {p50:.1f} ms, open loop for {SECONDS} s, 10,000 jobs queued"
    return [
        table.Row("submits", f"{RATE} submits/s with {STORED:,} jobs stored, p99", p99, "ms", 100, detail=detail),
        table.Row(
            "submits",
            f"{CLIENTS} clients as fast as they can",
            len(fast) / took,
            "submits/s",
            detail=f"p99 {table.percentile(fast, 0.99) * 1000:.0f} ms",
        ),
        table.Row(
            "submits",
            "submits that failed or were lost",
            len(failures) + asked - count,
            "jobs",
            0,
            detail="; ".join(failures[:2]),
        ),
    ]


async def _count(client: object) -> int:
    total, after = 0, None
    while True:
        params = {"limit": 1000} | ({"after": after} if after else {})
        page = (await client.get("/jobs", params=params)).raise_for_status().json()  # type: ignore[attr-defined]
        total += len(page["items"])
        after = page.get("next")
        if not after:
            return total
