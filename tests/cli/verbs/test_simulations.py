"""`oarlock simulate` with a server: its recorded jobs as a workload, and the simulation as a job there."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.client import live

from oarlock.cli import main
from oarlock.cli.verbs.cluster import serversimulations
from oarlock.simulator import recorder
from oarlock.spec import phases
from oarlock.spec.input import validation
from oarlock.spec.simulator import simulations

SMALL = "nodes: 1x2\njobs: [{name: a, count: 3, lasts: 10m, gpus: 1}]\n"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def ran(server: live.LiveServer, name: str, seconds: float) -> None:
    async def play() -> None:
        rig = server.rig
        rig.clock.now = time.time() - 3600
        job = await rig.submit("ann", name=name, roles={"worker": {"gpus": 2}})
        stored = await rig.store.read(lambda view: view.job(job.id))
        rig.store._state._jobs[job.id] = msgspec.structs.replace(stored, processed_s=seconds)
        rig.clock.now = time.time()

    server.do(play())


def test_recorded_jobs_are_simulated_here_and_saved(
    server: live.LiveServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran(server, "mine", 90.0)
    file = tmp_path / "week.yaml"
    words = ["simulate", "--recorded", "7d", "--save", str(file), "--policy", "fifo", "--json"]
    assert main.main(words) == 0
    first = json.loads(capsys.readouterr().out)
    assert first[0]["figures"]["completed"] == 1
    assert [one["lasts"] for one in validation.fields(file.read_text())["jobs"]] == [90.0]
    assert main.main(["simulate", str(file), "--policy", "fifo", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again[0]["figures"] == first[0]["figures"], "the file is the same workload"


class Played:
    """A client whose simulation passes through states."""

    def __init__(self, *states: simulations.Simulation, asked: Any = None) -> None:
        self.states = list(states)
        self.asked: list[simulations.Request] = []

    def simulate(self, asked: simulations.Request) -> Any:
        self.asked.append(asked)
        return type("Job", (), {"id": "j-1", "name": "simulation"})()

    def simulation(self, job: str) -> simulations.Simulation:
        found = self.states.pop(0)
        if isinstance(found, BaseException):
            raise found
        return found


def state(phase: phases.Phase, progress: str = "", **others: Any) -> simulations.Simulation:
    return simulations.Simulation(job="j-1", phase=phase, progress=progress, **others)


def test_a_simulation_on_the_server_is_followed_to_its_figures(
    small: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serversimulations, "POLL_S", 0.0)
    content = msgspec.json.encode(recorder.record(small, ("fifo", "las")))
    outcome = msgspec.json.decode(content, type=simulations.Outcome)
    capsys.readouterr()
    running = state(phases.Phase.PROCESSING, "Simulating fifo: 3 jobs")
    ended = state(phases.Phase.COMPLETED, "Done", outcome=outcome)
    asked = simulations.Request(text=SMALL)
    assert serversimulations.run(Played(running, running, ended), asked, as_json=False) == 0
    said = capsys.readouterr()
    assert said.err.count("Simulating fifo") == 1
    assert "time to the end, mean" in said.out
    assert main.main(["simulate", str(small), "--policy", "fifo", "--policy", "las"]) == 0
    local = capsys.readouterr().out
    assert figures(said.out) == figures(local)
    assert serversimulations.run(Played(ended), asked, as_json=True) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(content)["reports"]


def figures(table: str) -> list[list[str]]:
    """The words of each line. The measured times, which differ, also set the widths of the columns."""
    return [line.split() for line in table.splitlines() if "time of one" not in line and "CPU time" not in line]


def test_a_failed_simulation_names_its_reason_and_its_log(capsys: pytest.CaptureFixture[str]) -> None:
    failed = Played(state(phases.Phase.FAILED, reason="out of memory"))
    assert serversimulations.run(failed, simulations.Request(text=SMALL), as_json=True) == 1
    said = capsys.readouterr()
    assert (said.out, "out of memory" in said.err, "oarlock logs j-1" in said.err) == ("", True, True)


def test_an_interrupted_wait_leaves_the_simulation_running(capsys: pytest.CaptureFixture[str]) -> None:
    client = Played(KeyboardInterrupt())  # type: ignore[arg-type]  # raised in place of an answer
    assert serversimulations.run(client, simulations.Request(text=SMALL), as_json=False) == 130
    assert "oarlock cancel simulation" in capsys.readouterr().err


def test_the_flags_become_the_request(server: live.LiveServer, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[simulations.Request] = []
    monkeypatch.setattr(serversimulations, "run", lambda client, one, as_json: asked.append(one) or 0)
    flags = ["--nodes", "4x2", "--policy", "las", "--policy", "las", "--seed", "7", "--node-mtbf", "3d", "--on-server"]
    assert main.main(["simulate", str(small), *flags]) == 0
    assert main.main(["simulate", "small-first", "--on-server"]) == 0
    assert main.main(["simulate", "--recorded", "7d", "--on-server"]) == 0
    faults = {"node_mtbf_s": "3d"}
    assert asked[0] == simulations.Request(text=SMALL, nodes="4x2", policies=("las",), seed=7, faults=faults)
    assert asked[1] == simulations.Request(workload="small-first")
    assert asked[2].recorded is not None


def test_a_request_reaches_the_server(server: live.LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["simulate", "none", "--on-server"]) != 0
    assert "There is no such workload." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("simulate", "needs one workload"),
        ("simulate x.yaml --recorded 7d", "needs one workload"),
        ("simulate x.yaml --save y.yaml", "--save needs --recorded"),
        ("simulate small-first --on-server --scale 2", "does not take `scale`"),
        ("simulate small-first --on-server --out here", "does not take `out`"),
        ("simulate missing.yaml --on-server", "missing.yaml"),
    ],
)
def test_flags_that_do_not_fit_are_refused(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(line.split()) != 0
    assert said in capsys.readouterr().err
