"""Pools on a real server: a pretend cluster of 100 GPUs, real jobs, and what is refused."""

from __future__ import annotations

import pytest
from tests.e2e import shell as shells


def entitled(shell: shells.Shell) -> list[float]:
    items = {item["pool"]["name"]: item for item in shell.json("pools")["items"]}
    return [items[name]["entitled"]["gpus"] for name in ("a", "b", "c")]


def submit(shell: shells.Shell, name: str, pool: str, gpus: int) -> None:
    flags = ("--no-snapshot", "--detach", "--framework", "plain", "--cpus", "0.1")
    shell.do("run", *flags, "--name", name, "--pool", pool, "--gpus", str(gpus), "--", "sleep", "300")


@pytest.mark.long
def test_three_pools_share_a_cluster(fresh: shells.Shell) -> None:
    fresh.do("up", "--detach", "--virtual-nodes", "1", "--virtual-gpus", "100")
    for name in ("a", "b", "c"):
        fresh.do("pool", "set", name, "--reserve", "gpus=20", "--limit", "gpus=100", "--share", "1")

    for name, gpus in (("a", 10), ("b", 80), ("c", 80)):
        submit(fresh, f"first-{name}", name, gpus)
    assert entitled(fresh) == pytest.approx([10, 45, 45])
    submit(fresh, "second-a", "a", 40)
    assert entitled(fresh) == pytest.approx([100 / 3, 100 / 3, 100 / 3])
    fresh.wait_phase("first-a", "PROCESSING")

    drawn = fresh.do("pools").stdout
    assert max(map(len, drawn.splitlines())) <= 80
    assert "33.3" in drawn

    jobs_in_the_way = fresh.do("pool", "rm", "a", code=1).stderr
    assert "There are 2 jobs in `a`: " in jobs_in_the_way
    assert "first-a" in jobs_in_the_way
    assert "jobs live in leaves" in fresh.do("pool", "set", "d", "--parent", "a", code=1).stderr
    fresh.do("halt", "--wait", "first-a", "second-a")
    assert "There are 2 jobs in `a`" in fresh.do("pool", "rm", "a", code=1).stderr, "they may be resumed"

    fresh.do("cancel", "first-a", "second-a")
    fresh.do("down")
    fresh.do("up", "--detach", "--virtual-nodes", "1", "--virtual-gpus", "100")
    assert entitled(fresh) == pytest.approx([0, 50, 50]), "nothing of a pool is lost with its server"
    fresh.do("pool", "set", "a", "--static", "gpus")
    assert entitled(fresh) == pytest.approx([20, 40, 40])
    fresh.do("pool", "rm", "a")
    assert "There is no pool `a`" in fresh.do("run", "--no-snapshot", "--pool", "a", "--", "true", code=2).stderr
    fresh.do("cancel", "--wait", "first-b", "first-c")
