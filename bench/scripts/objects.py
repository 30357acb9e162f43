"""Follow the OarlockJobs of a cluster, and tell the time and the memory of it: scripts/objects.py COUNT CHANGES

Each line on the standard output is JSON: first for the list, then for the changes that follow it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from pathlib import Path

from oarlock.backends.kubernetes import oarlockjobs, site


def rss_mb() -> float:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def main(count: int, changes: int) -> None:
    told = site.Site(namespaces={"bench": site.Tenant("ann")})
    heard, enough = 0, asyncio.Event()

    def hear(uid: str) -> None:
        nonlocal heard
        heard += 1
        if heard >= changes:
            enough.set()

    followed = oarlockjobs.connect(told, os.environ, clock=time.time, monotonic=time.monotonic)
    followed.listen(hear)
    before, began, cpu = rss_mb(), time.monotonic(), time.process_time()
    running = asyncio.create_task(followed.run())
    await followed.synced.wait()
    took, spent = time.monotonic() - began, time.process_time() - cpu
    assert len(followed.items) == count, len(followed.items)
    heard = 0
    enough.clear()
    sys.stdout.write(json.dumps({"s": took, "cpu_s": spent, "mb": rss_mb() - before}) + "\n")
    sys.stdout.flush()
    cpu = time.process_time()
    await enough.wait()
    sys.stdout.write(json.dumps({"cpu_s": time.process_time() - cpu, "at": time.time()}) + "\n")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await followed.close()


asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
