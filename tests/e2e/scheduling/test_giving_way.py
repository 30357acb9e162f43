"""Real jobs on pretended GPUs give way to each other: one is preempted and goes on at the next step, one shrinks and
grows by restart, under the very same script.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.e2e import shell as shells

SETTINGS = """
    [scheduler]
    round_s = 1
    min_runtime_s = 1
    restart_s = 1
"""

SCRIPT = """
    import os, sys, time, torch
    from torch import nn
    from oarlock import train

    world = train.init()
    examples = torch.arange(int(sys.argv[1]))
    model = train.data_parallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    batches = train.Batches((examples,), 4, seed=3)
    diary = open(f"{sys.argv[2]}/{os.environ['OARLOCK_ATTEMPT']}-{world.rank}-{world.world_size}", "a")
    with train.Session(model=model, optimizer=optimizer, batches=batches) as session:
        for (which,) in session.steps(batches, epochs=1):
            loss = model(which.float().unsqueeze(1)).square().mean() * 1e-9
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0 if os.path.exists(sys.argv[2] + ".hurry") else 0.03)
            print(session.step, *which.tolist(), file=diary, flush=True)
"""

WAITS = "import os, sys, time\nfor _ in range(6000): os.path.exists(sys.argv[1]) or time.sleep(0.05)"


class Diary:
    """The lines that every process of every attempt has written: `attempt-rank-world`, a line for each step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def hurry(self) -> None:
        """Enough was seen: let it come to its end."""
        self.folder.with_suffix(".hurry").touch()

    def attempts(self) -> list[tuple[int, int]]:
        """(attempt, world size), in their order."""
        named = {tuple(map(int, path.name.split("-"))) for path in self.folder.iterdir()}
        return sorted({(attempt, world) for attempt, _, world in named})

    def steps(self, attempt: int, rank: int = 0) -> list[int]:
        return [numbers[0] for numbers in self._lines(f"{attempt}-{rank}-*")]

    def seen(self) -> list[int]:
        """The examples of all steps that count: those of a step that was done again are of the later attempt."""
        by_step: dict[int, dict[tuple[int, int], list[int]]] = {}
        for path in self.folder.iterdir():
            attempt, rank, _ = map(int, path.name.split("-"))
            for step, *examples in self._lines(path.name):
                by_step.setdefault(step, {})[attempt, rank] = examples
        counted = []
        for told in by_step.values():
            last = max(attempt for attempt, _ in told)
            counted += [one for (attempt, _), examples in told.items() if attempt == last for one in examples]
        return counted

    def _lines(self, pattern: str) -> list[list[int]]:
        lines = [line for path in self.folder.glob(pattern) for line in path.read_text().splitlines()]
        return [[int(word) for word in line.split()] for line in lines]


@pytest.fixture
def busy(fresh: shells.Shell) -> shells.Shell:
    """A server with two pretended GPUs, that may take them from one and give them to another every second."""
    fresh.home.mkdir(exist_ok=True)
    config = "\n".join(line.strip() for line in SETTINGS.splitlines())
    (fresh.home / "config.toml").write_text(config)
    fresh.write("steps.py", SCRIPT)
    fresh.write("waits.py", WAITS)
    fresh.do("up", "--detach", "--policy", "priority", "--virtual-nodes", "1", "--virtual-gpus", "2")
    return fresh


def until(shell: shells.Shell, name: str, diary: Diary, holds: Callable[[Diary], bool]) -> dict[str, Any]:
    return shell.wait_for(name, lambda job: holds(diary) or job["phase"] in ("FAILED", "COMPLETED"), timeout_s=280)


@pytest.mark.long
def test_a_job_of_higher_priority_takes_the_place_and_the_first_goes_on_at_the_next_step(busy: shells.Shell) -> None:
    diary = Diary(busy.work / "diary")
    gpus = ("--gpus", "1", "--workers", "2")
    script = ("--", "python", "steps.py", "4000", str(diary.folder))
    busy.do("run", "--detach", "--name", "low", "--priority", "10", "--max-restarts", "0", *gpus, *script)
    until(busy, "low", diary, lambda told: len(told.steps(1)) > 8)
    ends = busy.work / "end"
    busy.do("run", "--detach", "--name", "high", "--priority", "90", *gpus, "--", "python", "waits.py", str(ends))
    high = busy.wait_phase("high", "PROCESSING", timeout_s=280)
    low = busy.job("low")
    assert (low["phase"], len(low["attempts"])) == ("QUEUED", 1)
    (first,) = low["attempts"]
    assert first["verdict"]["message"].startswith("preempted by high"), first["verdict"]
    assert first["checkpoint_step"] == diary.steps(1)[-1], "it was given the time to save"
    assert first["ended_at"] <= high["attempts"][0]["started_at"], "nothing ran beside it"
    assert "STOPPED" not in low["reason"]

    ends.touch()
    diary.hurry()
    low = busy.wait_phase("low", "COMPLETED", "FAILED", timeout_s=280)
    assert (low["phase"], len(low["attempts"]), low.get("restarts", 0)) == ("COMPLETED", 2, 0)
    assert diary.steps(2)[0] == diary.steps(1)[-1] + 1, "no step was lost, none was done again"
    assert sorted(diary.seen()) == list(range(4000)), "every example once"
    told = busy.json("show", "low")["decisions"]
    assert [one["what"] for one in told if one["what"] in ("admitted", "preempted")] == [
        "admitted",
        "preempted",
        "admitted",
    ]


@pytest.mark.long
def test_a_job_that_must_not_be_preempted_is_waited_for(busy: shells.Shell) -> None:
    ends = busy.work / "end"
    busy.write(
        "kept.yaml",
        f"""
        name: kept
        framework: plain
        command: [python, waits.py, "{ends}"]
        preemptible: false
        priority: 1
        roles: {{worker: {{gpus: 2}}}}
        """,
    )
    busy.do("submit", "kept.yaml")
    busy.wait_phase("kept", "PROCESSING")
    busy.do("run", "--detach", "--name", "high", "--priority", "90", "--gpus", "1", "--", "true")
    refused = busy.wait_for("high", lambda job: job.get("refusal") is not None)
    assert refused["phase"] == "QUEUED"
    began = os.times().elapsed
    busy.wait_for("high", lambda job: job["phase"] != "QUEUED" or os.times().elapsed - began > 3)
    assert busy.job("high")["phase"] == "QUEUED"
    ends.touch()
    busy.wait_phase("high", "COMPLETED")
    assert len(busy.job("kept")["attempts"]) == 1


@pytest.mark.long
def test_an_elastic_job_grows_into_idle_devices_and_shrinks_for_others(busy: shells.Shell) -> None:
    """1 worker, 2, 1, 2: four attempts of one script, which knows nothing of it."""
    diary = Diary(busy.work / "diary")
    first, second = busy.work / "first", busy.work / "second"
    busy.do("run", "--detach", "--name", "first", "--gpus", "1", "--", "python", "waits.py", str(first))
    busy.wait_phase("first", "PROCESSING")
    busy.write(
        "elastic.yaml",
        f"""
        name: elastic
        command: [python, steps.py, "8000", "{diary.folder}"]
        max_restarts: 0
        roles: {{worker: {{count: 2, min: 1, gpus: 1}}}}
        """,
    )
    busy.do("submit", "elastic.yaml")
    until(busy, "elastic", diary, lambda told: len(told.steps(1)) > 8)
    first.touch()
    until(busy, "elastic", diary, lambda told: len(told.steps(2)) > 8)
    busy.do("run", "--detach", "--name", "second", "--gpus", "1", "--", "python", "waits.py", str(second))
    until(busy, "elastic", diary, lambda told: len(told.steps(3)) > 8)
    assert busy.job("second")["phase"] == "PROCESSING"
    second.touch()
    until(busy, "elastic", diary, lambda told: len(told.steps(4)) > 5)
    diary.hurry()
    job = busy.wait_phase("elastic", "COMPLETED", "FAILED", timeout_s=280)

    assert (job["phase"], job.get("restarts", 0)) == ("COMPLETED", 0), job["reason"]
    assert [world for _, world in diary.attempts()][:4] == [1, 2, 1, 2]
    reasons = [attempt["verdict"]["message"] for attempt in job["attempts"]]
    assert reasons[0].startswith("resized from 1 to 2 workers"), reasons
    assert reasons[1].startswith("resized from 2 to 1 worker"), reasons
    for (before, _), (after, _) in pairwise(diary.attempts()):
        assert diary.steps(after)[0] == diary.steps(before)[-1] + 1, "stopped with a checkpoint, resumed from it"
    seen = diary.seen()
    assert len(set(seen)) == len(seen), "no example twice, however many workers there were"
    assert len(seen) > 8000 - 8, "but for an epoch's last, where they make no batch for all"
    speed = busy.json("show", "elastic")["speed"]
    assert {one["devices"] for one in speed["items"] if one.get("measured")} <= {1, 2}


@pytest.mark.long
def test_two_jobs_share_a_gpu_and_a_third_waits(fresh: shells.Shell) -> None:
    fresh.write("waits.py", WAITS)
    fresh.do("up", "--detach", "--virtual-nodes", "1", "--virtual-gpus", "1")
    ends = fresh.work / "end"
    for name in ("one", "other", "third"):
        fresh.do("run", "--detach", "--name", name, "--gpus", "0.5", "--", "python", "waits.py", str(ends))
    for name in ("one", "other"):
        fresh.wait_phase(name, "PROCESSING")
    waiting = fresh.wait_for("third", lambda job: job.get("refusal") is not None)
    assert (waiting["phase"], waiting["refusal"]["needed"]["gpus"]) == ("QUEUED", 0.5)
    (node,) = fresh.json("nodes")["items"]
    assert [claim["devices"] for claim in node["holdings"]] == [[0], [0]]
    ends.touch()
    for name in ("one", "other", "third"):
        fresh.wait_phase(name, "COMPLETED")


ELASTIC = """
    import os, sys, time, torch
    from torch import nn
    from oarlock import train

    world = train.init()
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    train.data_parallel(model, optimizer)
    batches = train.Batches((torch.arange(int(sys.argv[1])),), 4, seed=3)
    diary = open(f"{sys.argv[2]}/{os.environ['OARLOCK_ATTEMPT']}-{os.getpid()}", "a")
    with train.Session(model=model, optimizer=optimizer, batches=batches) as session:
        for (which,) in session.steps(batches, epochs=1):
            loss = model(which.float().unsqueeze(1)).square().mean() * 1e-9
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0 if os.path.exists(sys.argv[2] + ".hurry") else 0.03)
            print(session.step, world.world_size, *which.tolist(), file=diary, flush=True)
"""


class Processes:
    """The steps of each process, by attempt and pid: number, world size, examples."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def steps(self) -> dict[str, list[list[int]]]:
        told = {path.name: path.read_text().split("\n")[:-1] for path in self.folder.iterdir()}
        return {name: [[int(word) for word in line.split()] for line in lines] for name, lines in told.items() if lines}

    def sizes(self) -> list[int]:
        """The sizes of the world that the first process has met, in their order."""
        steps = self.steps()
        if not steps:
            return []
        longest = max(steps.values(), key=len)
        return [size for place, (_, size, *_) in enumerate(longest) if not place or longest[place - 1][1] != size]


TOGETHER = "roles: {worker: {count: 2, min: 1, gpus: 1, on_failure: restart}}"
SERVED = "roles: {worker: {count: 2, min: 1, gpus: 1, cpus: 0.3}, ps: {count: 1, cpus: 0.2}}, strategy: "
ASKED = SERVED.replace("cpus: 0.3", "cpus: 0.3, on_failure: restart")


@pytest.mark.long
@pytest.mark.parametrize(
    "shape",
    [
        TOGETHER,
        SERVED + "{kind: ps, sync: false}",
        SERVED + "{kind: ps, sync: false, staleness: 2}",
        ASKED + "{kind: ps, sync: true}",
        ASKED + "{kind: ps, backup: 1}",
    ],
    ids=["allreduce", "asynchronous", "bounded staleness", "in step", "with backup workers"],
)
def test_workers_that_may_come_and_go_do_so_within_the_attempt(busy: shells.Shell, shape: str) -> None:
    """1 worker, 2, 1, 2: one attempt, in which the first process stays and no step is lost or done again."""
    told = Processes(busy.work / "diary")
    first, second = busy.work / "first", busy.work / "second"
    busy.write("comes.py", ELASTIC)
    busy.do("run", "--detach", "--name", "first", "--gpus", "1", "--", "python", "waits.py", str(first))
    busy.wait_phase("first", "PROCESSING")
    busy.write(
        "comes.yaml",
        f"""
        {{name: comes, command: [python, comes.py, "40000", "{told.folder}"], max_restarts: 0, {shape}}}
        """,
    )
    busy.do("submit", "comes.yaml")

    def sizes(*wanted: int) -> None:
        over = ("FAILED", "COMPLETED")
        busy.wait_for("comes", lambda job: told.sizes() == [*wanted] or job["phase"] in over, timeout_s=280)
        assert told.sizes() == [*wanted], busy.job("comes")

    sizes(1)
    first.touch()
    sizes(1, 2)
    busy.do("run", "--detach", "--name", "second", "--gpus", "1", "--", "python", "waits.py", str(second))
    sizes(1, 2, 1)
    busy.wait_phase("second", "PROCESSING", timeout_s=280)
    second.touch()
    sizes(1, 2, 1, 2)
    told.folder.with_suffix(".hurry").touch()
    job = busy.wait_phase("comes", "COMPLETED", "FAILED", timeout_s=280)
    assert (job["phase"], job.get("restarts", 0), len(job["attempts"])) == ("COMPLETED", 0, 1), job["reason"]
    steps = told.steps()
    assert len(steps) == 3, "one process for each worker that came"
    longest = max(steps.values(), key=len)
    made = [step for step, *_ in longest]
    whole = list(range(1, made[-1] + 1)) if "backup" not in shape else sorted(set(made))  # one may be left behind there
    assert made == whole, "no step was lost or done again"
    examples = [example for lines in steps.values() for _, _, *taken in lines for example in taken]
    assert len(examples) == len(set(examples)), "every example once"
    resized = [one["text"] for one in busy.json("show", "comes")["decisions"] if one["what"] == "resized"]
    assert resized == ["from 1 to 2 workers", "from 2 to 1 worker", "from 1 to 2 workers"]
