"""A job of two tasks that share no directory: their checkpoints go to an object store, shard by shard.

The test kills a task at each step of the upload. The store holds the request of that step up meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests import objectstores
from tests.e2e import shell as shells

PATIENCE_S = 900
"""The bound of each wait. On a machine with much other work a pod takes minutes to import torch."""

TRAIN = """
import os, re, time, torch
from oarlock import train
from torch import nn

world = train.init()
model = train.data_parallel(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
begun = re.search(r"step-(\\d+)", os.environ.get("OARLOCK_RESTORE") or "step-0")
total = int(begun[1]) + MORE if int(os.environ["OARLOCK_ATTEMPT"]) > KILLED else 1_000_000
with train.Session(model=model, optimizer=optimizer, total_steps=total, every_steps=10) as session:
    for _ in session.steps():
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        time.sleep(0.05)
print("rank", world.rank, "trained", session.step, "steps", flush=True)
train.shutdown()
"""


def program(*, killed: int, more: int) -> str:
    """Return a program that trains so many `more` steps than the checkpoint has. Attempts that a test kills, the first
    ones, do not end by themselves: however late it is, an upload is under way.
    """
    return TRAIN.replace("KILLED", str(killed)).replace("MORE", str(more))


class Step(NamedTuple):
    """A step of an upload: the request that is held up, and the worker that is killed then."""

    verb: str
    path: str
    done: bool
    victim: int


UPLOAD = (
    Step("PUT", r"/rank-1\.pt", False, 1),  # its shard is on its way
    Step("PUT", r"/rank-1\.pt", True, 1),  # its shard is there
    Step("PUT", r"/rank-0\.pt", False, 0),
    Step("GET", r"/rank-1\.pt", False, 0),  # the chief's agent reads the other's shard back
    Step("PUT", r"/manifest\.json", False, 0),  # all shards are verified
    Step("PUT", r"/manifest\.json", True, 0),  # the copy is whole, and not yet reported
    Step("POST", r"\?delete", False, 0),  # an old copy is to be removed
    Step("POST", r"\?delete", True, 0),  # its manifest is removed
)


def whole(bucket: objectstores.Bucket) -> list[int]:
    """Return the steps of the copies that have a manifest, in order, after all their digests are compared."""
    found = []
    for key in bucket.keys(""):
        place, _, file = key.rpartition("/")
        if file == "manifest.json":
            manifest = json.loads(bucket.get(key))
            assert [shard["file"] for shard in manifest["shards"]] == ["rank-0.pt", "rank-1.pt"]
            for shard in manifest["shards"]:
                content = bucket.get(f"{place}/{shard['file']}")
                assert hashlib.sha256(content).hexdigest() == shard["sha256"], f"{key} names another {shard['file']}"
            found.append(manifest["step"])
    return sorted(found)


def kill_at_each_step(
    shell: shells.Shell,
    bucket: objectstores.Bucket,
    name: str,
    kill: Callable[[int], None],
    steps: Sequence[Step] = UPLOAD,
) -> None:
    """Run the job; `kill` ends a worker's pod at once. Each attempt goes on where the last whole copy was made. A whole
    copy is there at the last step.
    """
    shell.write("torn.py", program(killed=len(steps), more=50))
    env = json.dumps(dict(bucket.env))
    shell.write(
        f"{name}.yaml",
        f"""
        name: {name}
        command: python torn.py
        roles: {{worker: {{count: 2, cpus: 0.5}}}}
        checkpoint: {{to: {bucket.url}/kept, keep: 2}}
        max_restarts: 20
        grace: 2s
        env: {env}
        """,
    )
    bucket.gate.hold(*steps[0][:2], done=steps[0].done)
    shell.do("submit", f"{name}.yaml")
    for number, step in enumerate(steps, 1):
        assert bucket.gate.reached.wait(PATIENCE_S), f"{step} was not reached"
        before = whole(bucket)
        kill(step.victim)
        bucket.gate.release()
        shell.wait_for(name, lambda job, number=number: len(job["attempts"]) > number, timeout_s=PATIENCE_S)
        assert whole(bucket)[-1:] >= before[-1:], "a whole copy stays, and none is torn"
        if number < len(steps):
            bucket.gate.hold(*steps[number][:2], done=steps[number].done)
    job = shell.wait_phase(name, "COMPLETED", "FAILED", timeout_s=PATIENCE_S)
    logs = shell.do("logs", name).stdout
    assert len(job["attempts"]) == len(steps) + 1
    assert len(whole(bucket)) == 2, "no more stay than the job keeps"
    resumed = [int(step) for step in re.findall(r"resumed from \S*step-(\d+)", logs)]
    assert resumed == sorted(resumed), "no attempt went back behind the one before"
    assert whole(bucket)[-1] == resumed[-1] + 50
    assert f"rank 1 trained {resumed[-1] + 50} steps" in logs
