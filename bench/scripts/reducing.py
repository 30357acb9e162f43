"""One of two processes that sum 25 MB, by gloo and by shared memory in turn. The first prints a JSON list of pairs:
the seconds of gloo, the seconds by shared memory, and the processor time of both.

reducing.py BYTES TIMES
"""

import json
import resource
import sys
import time
from collections.abc import Callable

import torch
from torch import distributed

from oarlock.train import worlds
from oarlock.train.sharing import crews

SIZE, TIMES = map(int, sys.argv[1:])


def timed(action: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds and the processor time of this process, begun by both processes together."""
    distributed.barrier()
    usage, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    action()
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    return seconds, after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime


torch.set_num_threads(1)
world = worlds.init()
plain = torch.zeros(SIZE // 4)
crew = crews.gathered(world)
sums = crews.shared(world, crew, [plain]) if crew is not None else None
if sums is None:
    sys.exit("these processes share no memory")
worlds.crew = crew


def by_memory() -> None:
    sums[0].start().wait()


found = []
for _ in range(TIMES):
    theirs, theirs_cpu = timed(lambda: distributed.all_reduce(plain))
    ours, ours_cpu = timed(by_memory)
    found.append((theirs, ours, theirs_cpu, ours_cpu))
if world.is_chief:
    print(json.dumps(found[2:]), flush=True)
