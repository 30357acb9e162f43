"""A simulation that the server runs as a job: the command prints the same figures as where it runs on its own."""

from __future__ import annotations

from tests.e2e import shell as shells

SCENARIO = """
    nodes: 2x2
    jobs:
      - {name: short, count: 6, lasts: 10m, gpus: 1, arrivals: {every: 5m}}
      - {name: long, count: 2, lasts: 3h, gpus: 2}
"""


def test_a_simulation_on_the_server_gives_the_same_figures_as_one_here(shell: shells.Shell) -> None:
    shell.do("up", "--detach")
    file = str(shell.write("scenario.yaml", SCENARIO))
    flags = ("--policy", "fifo", "--policy", "las", "--seed", "7", "--node-mtbf", "2h", "--node-mttr", "10m")
    there = shell.json("simulate", file, *flags, "--on-server")
    here = shell.json("simulate", file, *flags)
    assert [one["figures"] for one in there] == [one["figures"] for one in here]
    assert len(here) == 2
    (job,) = [one for one in shell.json("ps", "--all")["items"] if one["name"] == "simulation"]
    assert job["phase"] == "COMPLETED"
