"""Workers of an elastic job are killed; the others go on in their processes, and new ones join them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.e2e import shell as shells
from tests.train import resets

SCRIPT = """
    import json, os, sys, time, torch
    from oarlock import train
    diary, stop = sys.argv[1:]
    world = train.init()
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train.data_parallel(model, optimizer)
    data = torch.randn(240, 4), torch.randn(240, 2)
    batches = train.Batches(data, 4, seed=1)
    file = open(f"{diary}/{os.getpid()}", "a", buffering=1)
    with train.Session(model=model, optimizer=optimizer, batches=batches) as session:
        for x, y in session.steps(batches, epochs=1_000_000):
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
            if os.path.exists(stop):
                session.request_stop()
            told = {"task": os.environ["OARLOCK_INDEX"], "rank": world.rank, "ranks": world.world_size}
            print(json.dumps({**told, "step": session.step, "at": time.time()}), file=file)
            time.sleep(0.02)
    print("weights", session.step, model.weight.sum().item(), flush=True)
"""


PRINTS = """
    import threading, time
    def tell():
        while True:
            print("lives", flush=True)
            time.sleep(10)
    threading.Thread(target=tell, daemon=True).start()
"""
"""A busy machine takes minutes to import torch in five processes. Before the first report of the library, output shows
that a process does not hang; after it, output counts no more.
"""


CHOOSES = """
    from oarlock.train.strategies import automatic
    automatic.may_win = lambda *_: True
    automatic.predict = lambda ranks: {"none": 2.0, "ps": 1.0}
"""
"""Measurements by which strategy `auto` chooses the parameter servers."""


WAITS = """
    import os, sys, time
    permits = sys.argv[2] + "-" + os.environ["OARLOCK_INDEX"]
    while os.environ["OARLOCK_INCARNATION"] != "1" and not os.path.exists(permits):
        time.sleep(0.1)
"""
"""A successor of a worker that comes once a file permits it."""


class Diary:
    """The steps of all processes, as each has written them down."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def processes(self) -> dict[int, list[dict[str, Any]]]:
        """Return the steps of each process, by its pid."""
        found = {}
        for path in self.folder.iterdir():
            lines = path.read_text().split("\n")[:-1]
            found[int(path.name)] = [json.loads(line) for line in lines]
        return {pid: steps for pid, steps in found.items() if steps}

    def reached(self, pid: int | None) -> int:
        """Return the last step of this process."""
        return max((each["step"] for each in self.processes().get(pid or 0, [])), default=0)

    def of(self, task: str, ranks: int) -> int | None:
        """Return the pid of the newest process of a task, once it trains among so many."""
        last = {pid: steps[-1] for pid, steps in self.processes().items() if steps[-1]["task"] == task}
        pid = max(last, key=lambda each: last[each]["at"], default=None)
        return pid if pid is not None and last[pid]["ranks"] == ranks else None


WAYS = {
    "allreduce": ("auto", "worker: {count: 3, min: 1, cpus: 0.3, on_failure: restart}"),
    "servers": (
        "ps, sync: true",
        "worker: {count: 3, min: 1, cpus: 0.3, on_failure: restart}, ps: {count: 2, cpus: 0.2}",
    ),
    "idle": ("allreduce", "worker: {count: 3, min: 1, cpus: 0.3, on_failure: restart}, ps: {cpus: 0.2}"),
}
"""The strategies, and the roles, of a job whose workers step together, and come and go."""


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_the_others_go_on_without_a_killed_worker_and_take_its_successor_in(shell: shells.Shell, way: str) -> None:
    shell.write("elastic.py", SCRIPT)
    diary, stop = Diary(shell.folder / f"diary-{way}"), shell.folder / f"stop-{way}"
    name, (strategy, roles) = f"elastic-{way}", WAYS[way]
    shell.write(
        "elastic.yaml",
        f"""
        name: {name}
        command: python elastic.py {diary.folder} {stop}
        strategy: {{kind: {strategy}}}
        roles: {{{roles}}}
        max_restarts: 10
        """,
    )
    shell.do("submit", "elastic.yaml")
    job = shell.wait_for(name, lambda one: rejoinable(one) == 3)
    killed = set()
    for round_number, task in ((2, "1"), (4, "0")):  # the chief too
        shell.wait_for(name, lambda _, task=task: diary.of(task, 3) is not None)
        victim = diary.of(task, 3)
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        killed.add(victim)
        shell.wait_for(name, lambda _: any(diary.of(other, 2) for other in "012"))
        shell.wait_for(name, lambda one, number=round_number: one["attempts"][0]["round"] == number + 1)
    shell.wait_for(name, lambda _: all(diary.of(task, 3) for task in "012"))
    stop.touch()
    job = shell.wait_phase(name, "COMPLETED")
    assert (len(job["attempts"]), job["restarts"]) == (1, 2)
    ends = {line.partition("weights")[2] for line in shell.do("logs", name).stdout.splitlines() if "weights" in line}
    assert len(ends) == 1, ends
    survivor = next(steps for pid, steps in diary.processes().items() if steps[0]["task"] == "2")
    assert [each["ranks"] for each in survivor[:1] + survivor[-1:]] == [3, 3]
    steps = [each["step"] for each in survivor]
    assert sum(later <= earlier for earlier, later in itertools.pairwise(steps)) <= len(killed), "steps were lost"
    assert all(later <= earlier + 1 for earlier, later in itertools.pairwise(steps))


@pytest.mark.long
def test_in_a_job_of_a_fixed_size_the_others_wait_for_the_successor_of_a_killed_worker(shell: shells.Shell) -> None:
    """They keep their processes, and no step has fewer workers. Each kill spends a restart, until none is left."""
    shell.write("elastic.py", SCRIPT)
    diary, stop = Diary(shell.folder / "diary-fixed"), shell.folder / "stop-fixed"
    shell.write(
        "fixed.yaml",
        f"""
        name: fixed
        command: python elastic.py {diary.folder} {stop}
        roles: {{worker: {{count: 3, cpus: 0.3, on_failure: restart}}}}
        max_restarts: 2
        """,
    )
    shell.do("submit", "fixed.yaml")
    killed = set()
    for task in ("1", "0"):  # the chief too
        shell.wait_for("fixed", lambda one: rejoinable(one) == 3 and all(diary.of(each, 3) for each in "012"))
        victim, survivor = diary.of(task, 3), diary.of("2", 3)
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        killed.add(victim)
        shell.wait_for("fixed", lambda _, task=task: diary.of(task, 3) not in (*killed, None))
        assert diary.of("2", 3) == survivor, "the other process began anew"
    job = shell.wait_for("fixed", lambda one: rejoinable(one) == 3)
    assert (len(job["attempts"]), job["restarts"]) == (1, 2)
    for steps in diary.processes().values():
        assert {each["ranks"] for each in steps} == {3}, "a step was made with fewer workers"
        numbers = [each["step"] for each in steps]
        assert sum(later <= earlier for earlier, later in itertools.pairwise(numbers)) <= len(killed), "steps were lost"
        assert all(earlier <= later <= earlier + 1 for earlier, later in itertools.pairwise(numbers))
    os.kill(diary.of("1", 3) or 0, signal.SIGKILL)
    assert shell.wait_phase("fixed", "FAILED")["restarts"] == 2


@pytest.mark.long
def test_a_gang_that_is_halted_while_it_waits_for_a_successor_saves_and_goes_on(shell: shells.Shell) -> None:
    """Its chief is dead, so that another one writes."""
    diary, stop = of_a_fixed_size(shell, "waits")
    os.kill(diary.of("0", 3) or 0, signal.SIGKILL)
    shell.wait_for("waits", lambda one: incarnations(one, "worker") == [2, 1, 1])
    shell.wait_for("waits", lambda _: "2 of 3 ranks wait" in shell.do("logs", "waits").stdout)
    before = set(diary.processes())
    shell.do("halt", "waits")
    job = shell.wait_phase("waits", "HALTED")
    saved, last = job["attempts"][0]["checkpoint_step"], max(map(diary.reached, before))
    assert saved in (last - 1, last), "the last step is taken back where it was lost"
    shell.do("resume", "waits")
    shell.wait_for("waits", lambda _: len(set(diary.processes()) - before) == 3)
    stop.touch()
    job = shell.wait_phase("waits", "COMPLETED", "FAILED")
    assert job["phase"] == "COMPLETED", job["reason"]
    resumed = [steps for pid, steps in diary.processes().items() if pid not in before]
    assert [(steps[0]["step"], steps[0]["ranks"]) for steps in resumed] == [(saved + 1, 3)] * 3


@pytest.mark.long
def test_new_bounds_decide_whether_the_others_wait_for_a_successor(shell: shells.Shell) -> None:
    """They hold from the next loss on. While a successor is awaited they cannot be changed."""
    diary, stop = of_a_fixed_size(shell, "edited")
    shell.do("set", "edited", "--min", "1")
    os.kill(diary.of("1", 3) or 0, signal.SIGKILL)
    shell.wait_for("edited", lambda _: all(diary.of(each, 2) for each in "02"))
    stop.with_name(f"{stop.name}-1").touch()
    shell.wait_for("edited", lambda one: rejoinable(one) == 3 and all(diary.of(each, 3) for each in "012"))
    shell.do("set", "edited", "--min", "3")
    fixed_from = diary.reached(diary.of("2", 3))
    os.kill(diary.of("0", 3) or 0, signal.SIGKILL)
    shell.wait_for("edited", lambda _: "2 of 3 ranks wait" in shell.do("logs", "edited").stdout)
    assert "just comes or goes" in shell.do("set", "edited", "--min", "1", code=1).stderr
    stop.with_name(f"{stop.name}-0").touch()
    shell.wait_for("edited", lambda one: rejoinable(one) == 3 and all(diary.of(each, 3) for each in "012"))
    stop.touch()
    job = shell.wait_phase("edited", "COMPLETED", "FAILED")
    assert (job["phase"], len(job["attempts"]), job["restarts"]) == ("COMPLETED", 1, 2), job["reason"]
    later = [each for steps in diary.processes().values() for each in steps if each["step"] > fixed_from]
    assert {each["ranks"] for each in later} == {3}, "a step was made with fewer workers"


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", ["allreduce", "servers"])  # idle servers change nothing here
def test_a_stopped_worker_is_left_behind_once_its_hang_is_seen(shell: shells.Shell, way: str) -> None:
    shell.write("elastic.py", PRINTS + SCRIPT)
    name, (strategy, roles) = f"stopped-{way}", WAYS[way]
    diary, stop = Diary(shell.home.parent / name), shell.home.parent / f"stop-{name}"
    shell.write(
        "stopped.yaml",
        f"""
        name: {name}
        command: python elastic.py {diary.folder} {stop}
        strategy: {{kind: {strategy}}}
        roles: {{{roles}}}
        hang_timeout: 120s
        """,
    )
    shell.do("submit", "stopped.yaml")
    shell.wait_for(name, lambda one: rejoinable(one) == 3 and diary.of("1", 3) is not None, timeout_s=280)
    victim, survivor = diary.of("1", 3), diary.of("2", 3)
    assert victim is not None
    os.kill(victim, signal.SIGSTOP)
    shell.wait_for(name, lambda _: any(diary.of(other, 2) for other in "02"), timeout_s=280)
    shell.wait_for(name, lambda _: all(diary.of(task, 3) for task in "012"), timeout_s=280)
    stop.touch()
    job = shell.wait_phase(name, "COMPLETED", "FAILED", timeout_s=280)
    assert (job["phase"], len(job["attempts"]), job["restarts"]) == ("COMPLETED", 1, 1), job["reason"]
    assert diary.of("2", 3) == survivor, "it is another process"


@pytest.mark.long
def test_workers_whose_connections_break_go_on_in_another_round(shell: shells.Shell) -> None:
    shell.write("elastic.py", SCRIPT)
    diary, stop = Diary(shell.home.parent / "broken"), shell.home.parent / "stop-broken"
    shell.write(
        "broken.yaml",
        f"""
        name: broken
        command: python elastic.py {diary.folder} {stop}
        roles: {{worker: {{count: 3, min: 1, cpus: 0.3, on_failure: restart}}}}
        """,
    )
    shell.do("submit", "broken.yaml")
    shell.wait_for("broken", lambda one: rejoinable(one) == 3 and all(diary.of(task, 3) for task in "012"))
    workers = {diary.of(task, 3) for task in "012"}
    for number in (2, 3):
        resets.reset_between(workers)
        shell.wait_for("broken", lambda one, number=number: one["attempts"][0]["round"] >= number)
        newest = max(each["step"] for steps in diary.processes().values() for each in steps)
        try:
            shell.wait_for("broken", lambda _, newest=newest: all(diary.reached(pid) > newest + 3 for pid in workers))
        except AssertionError as late:
            raise AssertionError(f"not all have gone on after step {newest}: {ends(shell, diary, workers)}") from late
    stop.touch()
    job = shell.wait_phase("broken", "COMPLETED", "FAILED")
    assert (job["phase"], len(job["attempts"]), job["restarts"]) == ("COMPLETED", 1, 0), job["reason"]
    assert set(diary.processes()) == workers, f"a process was started again: {ends(shell, diary, workers)}"
    rounds = job["attempts"][0]["round"]
    for steps in diary.processes().values():
        numbers = [each["step"] for each in steps]
        assert sum(later <= earlier for earlier, later in itertools.pairwise(numbers)) < rounds, "steps were lost"
        assert all(later <= earlier + 1 for earlier, later in itertools.pairwise(numbers))


def ends(shell: shells.Shell, diary: Diary, pids: set[int | None]) -> str:
    """Tell how far each of these processes has come, and how the tasks of the job stand and have ended."""
    live = shell.job("broken")["attempts"][-1]
    lines = [f"process {pid}: step {diary.reached(pid)}, runs: {shells.runs(pid or 0)}" for pid in pids]
    for task in live["tasks"]:
        told = {name: task[name] for name in ("phase", "part", "incarnation", "lost_round", "exit", "last_end")}
        lines.append(f"{task['role']}-{task['index']}: {told}")
    return "\n".join([f"round {live['round']}, others: {set(diary.processes()) - pids}", *lines])


def of_a_fixed_size(shell: shells.Shell, name: str) -> tuple[Diary, Path]:
    """Start a job whose three workers wait for the successor of a lost one, which comes once a file permits it. Return
    its diary and the file that ends it, once all train.
    """
    shell.write("elastic.py", WAITS + SCRIPT)
    diary, stop = Diary(shell.folder / f"diary-{name}"), shell.folder / f"stop-{name}"
    shell.write(
        f"{name}.yaml",
        f"""
        name: {name}
        command: python elastic.py {diary.folder} {stop}
        roles: {{worker: {{count: 3, cpus: 0.3, on_failure: restart}}}}
        """,
    )
    shell.do("submit", f"{name}.yaml")
    shell.wait_for(name, lambda one: rejoinable(one) == 3 and all(diary.of(each, 3) for each in "012"))
    return diary, stop


def rejoinable(job: dict[str, Any]) -> int:
    return sum(task.get("can_rejoin", False) for task in job["attempts"][-1]["tasks"]) if job["attempts"] else 0


@pytest.mark.long
def test_a_killed_worker_of_parameter_servers_is_replaced_while_the_other_waits(shell: shells.Shell) -> None:
    """In lockstep, by default: the other keeps its process and makes every step once."""
    shell.write("served.py", SCRIPT)
    diary, stop = Diary(shell.folder / "served"), shell.folder / "stop-served"
    shell.write(
        "served.yaml",
        f"""
        name: served
        command: python served.py {diary.folder} {stop}
        strategy: {{kind: ps}}
        roles: {{worker: {{count: 2, cpus: 0.3}}, ps: {{count: 1, cpus: 0.3}}}}
        max_restarts: 10
        """,
    )
    shell.do("submit", "served.yaml")
    for task in ("1", "0"):
        shell.wait_for("served", lambda one: rejoinable(one) == 2 and all(diary.of(each, 2) for each in "01"))
        victim, before = diary.of(task, 2), diary.of("0" if task == "1" else "1", 2)
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        shell.wait_for("served", lambda _, task=task, victim=victim: diary.of(task, 2) not in (victim, None))
        assert diary.of("0" if task == "1" else "1", 2) == before, "the other process began anew"
    stop.touch()
    job = shell.wait_phase("served", "COMPLETED", "FAILED")
    assert (job["phase"], len(job["attempts"]), job["restarts"]) == ("COMPLETED", 1, 2), job["reason"]
    log = shell.do("logs", "served").stdout
    assert len({line.partition("weights")[2] for line in log.splitlines() if "weights" in line}) == 1, log
    for pid, steps in diary.processes().items():
        numbers = [each["step"] for each in steps]
        assert all(later == earlier + 1 for earlier, later in itertools.pairwise(numbers)), f"process {pid}"


@pytest.mark.long
def test_a_killed_worker_and_a_killed_server_are_replaced_alone_once_servers_are_chosen(shell: shells.Shell) -> None:
    shell.write("chosen.py", CHOOSES + SCRIPT)
    diary, stop = Diary(shell.folder / "chosen"), shell.folder / "stop-chosen"
    shell.write(
        "chosen.yaml",
        f"""
        name: chosen
        command: python chosen.py {diary.folder} {stop}
        strategy: {{kind: auto}}
        roles: {{worker: {{count: 2, cpus: 0.3}}, ps: {{count: 1, cpus: 0.3}}}}
        max_restarts: 10
        """,
    )
    shell.do("submit", "chosen.yaml")
    job = shell.wait_for("chosen", lambda one: rejoinable(one) == 2 and all(diary.of(each, 2) for each in "01"))
    survivor, victim = diary.of("1", 2), diary.of("0", 2)  # the chief, with the store of the process group
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    shell.wait_for("chosen", lambda one: rejoinable(one) == 2 and diary.of("0", 2) not in (victim, None))
    os.kill(process_of(job["id"], "ps"), signal.SIGKILL)
    shell.wait_for("chosen", lambda one: incarnations(one, "ps") == [2])
    before = diary.reached(survivor)
    shell.wait_for("chosen", lambda _: diary.reached(survivor) > before + 20)
    stop.touch()
    job = shell.wait_phase("chosen", "COMPLETED", "FAILED")
    assert (job["phase"], len(job["attempts"]), job["restarts"]) == ("COMPLETED", 1, 2), job["reason"]
    assert diary.of("1", 2) == survivor, "the other process began anew"
    assert (incarnations(job, "worker"), incarnations(job, "ps")) == ([2, 1], [2])
    log = shell.do("logs", "chosen").stdout
    assert len({line.partition("weights")[2] for line in log.splitlines() if "weights" in line}) == 1, log
    for pid, steps in diary.processes().items():
        numbers = [each["step"] for each in steps]
        assert all(later == earlier + 1 for earlier, later in itertools.pairwise(numbers)), f"process {pid}"


@pytest.mark.long
def test_a_worker_and_a_server_whose_agents_die_are_replaced_alone_without_a_restart(shell: shells.Shell) -> None:
    """It is the platform's failure. The others keep their processes, and no step is lost."""
    shell.write("served.py", SCRIPT)
    diary, stop = Diary(shell.folder / "agents"), shell.folder / "stop-agents"
    shell.write(
        "agents.yaml",
        f"""
        name: agents
        command: python served.py {diary.folder} {stop}
        strategy: {{kind: ps}}
        roles: {{worker: {{count: 2, cpus: 0.3}}, ps: {{count: 1, cpus: 0.3}}}}
        max_restarts: 0
        """,
    )
    shell.do("submit", "agents.yaml")
    job = shell.wait_for("agents", lambda one: rejoinable(one) == 2 and all(diary.of(each, 2) for each in "01"))
    survivor, lost = diary.of("0", 2), diary.of("1", 2)
    for victim, role in ((lost, "worker"), (process_of(job["id"], "ps"), "ps")):
        os.kill(agent_of(victim), signal.SIGKILL)
        shell.wait_for("agents", lambda one, role=role: 2 in incarnations(one, role))
        shell.wait_for("agents", lambda one: rejoinable(one) == 2 and diary.of("1", 2) not in (lost, None))
        before = diary.reached(survivor)
        shell.wait_for("agents", lambda _, before=before: diary.reached(survivor) > before + 20)
    stop.touch()
    job = shell.wait_phase("agents", "COMPLETED", "FAILED")
    assert (job["phase"], len(job["attempts"]), job["restarts"]) == ("COMPLETED", 1, 0), job["reason"]
    assert (diary.of("0", 2), incarnations(job, "worker"), incarnations(job, "ps")) == (survivor, [1, 2], [2])
    for pid, steps in diary.processes().items():
        numbers = [each["step"] for each in steps]
        assert all(later == earlier + 1 for earlier, later in itertools.pairwise(numbers)), f"process {pid}"


def incarnations(job: dict[str, Any], role: str) -> list[int]:
    return [task.get("incarnation", 1) for task in job["attempts"][-1]["tasks"] if task["role"] == role]


def process_of(job: str, role: str) -> int:
    """Return the pid of the process of the job's only task of this role."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            told = set(path.read_bytes().split(b"\0"))
            if {f"OARLOCK_JOB={job}".encode(), f"OARLOCK_ROLE={role}".encode()} <= told:
                found.append(int(path.parent.name))
    return min(found)


def agent_of(pid: int | None) -> int:
    """Return the pid of the agent that has started this process, perhaps by way of a shell."""
    while b"/agent/" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    assert pid is not None
    return pid


@pytest.mark.long
def test_a_job_with_parameter_servers_that_is_halted_saves_and_goes_on(shell: shells.Shell) -> None:
    """The servers stay until the workers have ended their step and saved."""
    shell.write("served.py", SCRIPT)
    diary, stop = Diary(shell.folder / "halted"), shell.folder / "stop-halted"
    shell.write(
        "halted.yaml",
        f"""
        name: halted
        command: python served.py {diary.folder} {stop}
        strategy: {{kind: ps}}
        roles: {{worker: {{count: 2, cpus: 0.3}}, ps: {{count: 1, cpus: 0.3}}}}
        """,
    )
    shell.do("submit", "halted.yaml")
    shell.wait_for("halted", lambda one: rejoinable(one) == 2 and all(diary.of(each, 2) for each in "01"))
    shell.do("halt", "halted")
    job = shell.wait_phase("halted", "HALTED")
    last = max(steps[-1]["step"] for steps in diary.processes().values())
    assert job["attempts"][0]["checkpoint_step"] == last
    shell.do("resume", "halted")
    shell.wait_for("halted", lambda one: rejoinable(one) == 2 and len(diary.processes()) == 4)
    stop.touch()
    job = shell.wait_phase("halted", "COMPLETED", "FAILED")
    assert (job["phase"], job["restarts"]) == ("COMPLETED", 0), job["reason"]
    assert {steps[0]["step"] for steps in diary.processes().values()} == {1, last + 1}
