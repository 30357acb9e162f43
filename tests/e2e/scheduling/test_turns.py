"""Real jobs under the policy of turns: two alternate on one pretended GPU, or share it while that pays; one that had to
start on two nodes moves to one. The same script each time, which knows nothing of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e import shell as shells

PATIENCE_S = 900
pytestmark = pytest.mark.timeout(3 * PATIENCE_S)  # each is some ten starts of real processes

SETTINGS = """
    [scheduler]
    policy = "gandiva"
    round_s = 1
    min_runtime_s = 1
    restart_s = 0.1

    [scheduler.gandiva]
    slice_s = {slice_s}
"""

# A step takes 0.05 s; ten times that while the other job trains too, as soon as the file `harms` exists. The session
# measures steps with a clock that counts these seconds alone: whether sharing pays must not depend on how busy the
# machine is. A job that trains holds a lock on its file.
SCRIPT = """
    import fcntl, os, sys, time, torch
    from torch import nn
    from oarlock import train
    from oarlock.train.measuring import pace

    folder, name, other = sys.argv[1:]
    world = train.init()
    examples = torch.arange(100_000)
    model = train.data_parallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    batches = train.Batches((examples,), 4, seed=3)
    attempt = os.environ["OARLOCK_ATTEMPT"]
    diary = open(f"{folder}/{name}-{attempt}-{world.rank}", "a")

    trained_s = 0.0
    pace.Pace.__init__.__defaults__ = (lambda: trained_s,)
    mine = open(f"{folder}/{name}.trains", "a")
    fcntl.flock(mine, fcntl.LOCK_SH)

    def in_the_way():
        if not os.path.exists(f"{folder}/harms"):
            return False
        with open(f"{folder}/{other}.trains", "a") as theirs:
            try:
                fcntl.flock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    with train.Session(model=model, optimizer=optimizer, batches=batches) as session:
        for (which,) in session.steps(batches, epochs=1):
            loss = model(which.float().unsqueeze(1)).square().mean() * 1e-9
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step_s = 0.5 if in_the_way() else 0.05
            trained_s += step_s
            time.sleep(step_s)
            print(session.step, time.time(), file=diary, flush=True)
"""

WAITS = "import os, sys, time\nfor _ in range(6000): os.path.exists(sys.argv[1]) or time.sleep(0.05)"

JOB = """
    name: {name}
    command: [python, steps.py, "{diary}", "{name}", "{other}"]
    max_restarts: 0
    roles: {{worker: {worker}}}
"""

THIRD = """
    name: third
    framework: plain
    command: [python, waits.py, "{ends}"]
    preemptible: false
    roles: {{worker: {{gpus: 1, cpus: 0.5}}}}
"""


class Diary:
    """The lines that every process has written in each attempt, one for each step: its number, and when."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def attempts(self, name: str) -> list[int]:
        """Those that have done steps."""
        found = (path.name.split("-") for path in self.folder.glob(f"{name}-*-0") if path.stat().st_size)
        return sorted(int(attempt) for _, attempt, _ in found)

    def steps(self, name: str, attempt: int) -> list[tuple[int, float]]:
        path = self.folder / f"{name}-{attempt}-0"
        whole, _, _ = path.read_text().rpartition("\n") if path.exists() else ("", "", "")
        return [(int(step), float(at)) for step, at in (line.split() for line in whole.splitlines())]

    def in_one_piece(self, name: str) -> None:
        """Each attempt went on just where the one before it was stopped."""
        told = [[step for step, _ in self.steps(name, attempt)] for attempt in self.attempts(name)]
        steps = [step for one in told if one for step in one]
        assert steps == list(range(1, len(steps) + 1)), f"{name}: a step was lost, or done again"

    def share(self, name: str, other: str, *, since: int = 1) -> bool:
        """Whether both have trained at the same time; `since` that attempt of the first."""
        mine, theirs = (
            [
                (told[0][1], told[-1][1])
                for attempt in self.attempts(one)
                if attempt >= first and (told := self.steps(one, attempt))
            ]
            for one, first in ((name, since), (other, 1))
        )
        return any(first < last_of and first_of < last for first, last in mine for first_of, last_of in theirs)


class Cluster:
    """A server that pretends to have so many nodes and GPUs, and the diary of the jobs that run there."""

    def __init__(self, shell: shells.Shell, nodes: int, gpus: int, slice_s: float) -> None:
        self.shell = shell
        self.diary = Diary(shell.work / "diary")
        shell.home.mkdir(exist_ok=True)
        settings = SETTINGS.format(slice_s=slice_s)
        (shell.home / "config.toml").write_text("\n".join(line.strip() for line in settings.splitlines()))
        shell.write("steps.py", SCRIPT)
        shell.write("waits.py", WAITS)
        shell.do("up", "--detach", "--virtual-nodes", str(nodes), "--virtual-gpus", str(gpus))

    def measured(self, name: str) -> dict[bool, int]:
        """How often its speed was looked at, by whether it shared its GPU."""
        with self.shell.client() as client:
            found = client.speed(name).items
        return {shared: sum(one.measured for one in found if bool(one.beside) is shared) for shared in (False, True)}

    def submit(self, name: str, worker: str, *, other: str = "") -> None:
        told = JOB.format(name=name, worker=worker, other=other, diary=self.diary.folder)
        self.shell.write(f"{name}.yaml", told)
        self.shell.do("submit", f"{name}.yaml")

    def until(self, name: str, holds: Callable[[], bool]) -> dict[str, Any]:
        """Wait until the condition holds, at most until the job ends."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            job = self.shell.job(name)
            assert job["phase"] not in ("FAILED", "COMPLETED"), f"{name} is over: {job}"
            assert time.monotonic() < deadline, f"still {job['phase']}: {job}"
            time.sleep(0.2)
        return self.shell.job(name)

    def reasons(self, name: str) -> list[str]:
        """Why its attempts ended, in their order."""
        ended = (attempt.get("verdict") for attempt in self.shell.job(name)["attempts"])
        return [verdict["message"] for verdict in ended if verdict is not None]

    def claims(self) -> list[tuple[list[int], float]]:
        """Devices and how much of them, by what is held on the only node."""
        with self.shell.client() as client:
            (node,) = client.nodes()
        return [(list(claim.devices), claim.amount.gpus + claim.amount.gpu_milli / 1000) for claim in node.holdings]


@pytest.fixture
def turning(fresh: shells.Shell) -> Iterator[shells.Shell]:
    """A user's server, and none of the jobs that would go on for long without it."""
    yield fresh
    for job in fresh.json("ps")["items"]:
        fresh.do("cancel", job["name"], code=None)
        fresh.wait_phase(job["name"], "CANCELED", "COMPLETED")


@pytest.mark.long
def test_two_jobs_alternate_on_one_gpu(turning: shells.Shell) -> None:
    cluster = Cluster(turning, 1, 1, slice_s=2)
    diary = cluster.diary
    cluster.submit("one", "{gpus: 1}")
    cluster.until("one", lambda: bool(diary.attempts("one")))
    cluster.submit("two", "{gpus: 1}")
    for name in ("one", "two"):
        cluster.until(name, lambda name=name: len(diary.attempts(name)) >= 2)

    for name in ("one", "two"):
        diary.in_one_piece(name)
    assert not diary.share("one", "two")
    assert {reason.split(":")[0] for reason in cluster.reasons("one")} == {"preempted by two"}
    assert {reason.split(":")[0] for reason in cluster.reasons("two")} == {"preempted by one"}
    assert turning.job("one").get("restarts", 0) == 0, "turns spend no restart"


@pytest.mark.long
def test_two_jobs_share_a_gpu_as_long_as_that_pays(turning: shells.Shell) -> None:
    """Both were measured alone, each on its own GPU; then another job gets one of these."""
    cluster = Cluster(turning, 1, 2, slice_s=2)
    diary, ends, harms = cluster.diary, turning.work / "ends", cluster.diary.folder / "harms"
    for name, other in (("one", "two"), ("two", "one")):
        cluster.submit(name, "{gpus: 1, gpu_memory: 1Gi, cpus: 0.5}", other=other)
    for name in ("one", "two"):
        cluster.until(name, lambda name=name: cluster.measured(name)[False] > 0)
    turning.write("third.yaml", THIRD.format(ends=ends))
    turning.do("submit", "third.yaml")
    cluster.until("one", lambda: sorted(amount for _, amount in cluster.claims()) == [0.5, 0.5, 1.0])
    assert len({device for devices, amount in cluster.claims() if amount < 1 for device in devices}) == 1
    starts = {name: len(turning.job(name)["attempts"]) for name in ("one", "two")}
    for name in ("one", "two"):
        cluster.until(name, lambda name=name: cluster.measured(name)[True] >= 3)
    assert {name: len(turning.job(name)["attempts"]) for name in starts} == starts, "it pays, so they stay together"
    assert diary.share("one", "two", since=starts["one"])

    harms.touch()
    cluster.until("two", lambda: any("both together do" in reason for reason in cluster.reasons("two")))
    cluster.until("two", lambda: diary.attempts("two")[-1] > starts["two"])
    assert not diary.share("two", "one", since=starts["two"] + 1), "by turns again, and not together a second time"
    for name in ("one", "two"):
        diary.in_one_piece(name)


@pytest.mark.long
def test_one_that_had_to_start_on_two_nodes_moves_to_one(turning: shells.Shell) -> None:
    cluster = Cluster(turning, 2, 2, slice_s=600)
    diary, first, second = cluster.diary, turning.work / "first", turning.work / "second"
    for name, gpus, ends in (("a", 1, first), ("b", 1, second), ("c", 1, turning.work / "never")):
        turning.do("run", "--detach", "--name", name, "--gpus", str(gpus), "--", "python", "waits.py", str(ends))
        turning.wait_phase(name, "PROCESSING")
    second.touch()
    turning.wait_phase("b", "COMPLETED")
    cluster.submit("wide", "{gpus: 1, count: 2}")
    job = cluster.until("wide", lambda: len(diary.steps("wide", 1)) > 8)
    assert {task["node"] for task in job["attempts"][0]["tasks"]} == {"virtual-0", "virtual-1"}
    first.touch()
    job = cluster.until("wide", lambda: len(diary.steps("wide", 2)) > 8)
    assert {task["node"] for task in job["attempts"][1]["tasks"]} == {"virtual-0"}
    assert cluster.reasons("wide") == ["moved from virtual-0, virtual-1 to virtual-0: all of it fits one node"]
    diary.in_one_piece("wide")
