"""A queue on one machine: waiting jobs say why and until when, stopped ones for which job, and devices have a price."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from tests.e2e import shell as shells


def until(true: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
    end = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.2)


@pytest.mark.long
def test_from_the_plan_to_the_bill(fresh: shells.Shell) -> None:
    fresh.home.mkdir(parents=True)
    (fresh.home / "config.toml").write_text("""
[scheduler]
policy = "priority"
min_runtime_s = 1
round_s = 1
[prices]
currency = "EUR"
gpus = { virtual = 3600 }
""")
    fresh.do("up", "--detach", "--virtual-nodes", "2", "--virtual-gpus", "2")
    fresh.write("wait.yaml", 'name: waits\ncommand: "true"\nroles: {worker: {count: 2, gpus: 1, cpus: 0.1}}\n')
    planned = fresh.do("plan", "wait.yaml").stdout.splitlines()
    assert planned[0].startswith("Now: It starts on virtual-")
    assert planned[-1] == "  It costs about 7,200.00 EUR an hour."

    taken = ["--workers", "2", "--gpus", "2", "--cpus", "0.1", "--timeout", "1h", "--grace", "1s"]
    fresh.do("run", "--detach", "--name", "big", *taken, "--", "sleep", "300")
    fresh.wait_phase("big", "PROCESSING")
    assert fresh.do("plan", "wait.yaml").stdout.startswith("Later: It needs 2 GPUs and 0.2 CPUs for 2 tasks; 0 of 4 ")
    fresh.do("submit", "wait.yaml", "--no-snapshot")
    lines = fresh.do("why", "waits").stdout.splitlines()
    assert len(lines) == 3
    assert "It needs 2 GPUs and 0.2 CPUs for 2 tasks; 0 of 4 GPUs are free." in lines[0]
    assert lines[1] == "big holds 4 GPUs. It would start once big ends."
    assert lines[2].startswith("It should start within ")
    assert lines[2].endswith(" min. No other job waits.")
    refused = fresh.do("run", "--detach", "--workers", "5", "--gpus", "1", "--", "true", code=1).stderr
    assert "5 GPUs" in refused
    assert "At most 4 workers would fit." in refused
    too_large = fresh.do("run", "--size", "2-v100", "--gpu-type", "virtual", "--", "true", code=1).stderr
    assert "42 CPUs and 48 GiB" in too_large

    fresh.do("run", "--name", "urgent", "--priority", "90", *taken[:6], "--", "sleep", "1")
    told = [one["what"] for one in fresh.json("show", "big")["decisions"]]
    assert told[:2] == ["admitted", "preempted"]
    assert "preempted            by urgent: " in fresh.do("show", "big").stdout
    assert fresh.do("show", "urgent").stdout.count(" EUR") == 1, "it has ended: a cost, and no price per hour"
    until(
        lambda: fresh.job("big")["phase"] == "PROCESSING" or fresh.job("waits")["phase"] == "COMPLETED", "none went on"
    )
    fresh.do("cancel", "big", "--wait")
    fresh.wait_phase("waits", "COMPLETED")
    decided = fresh.json("show", "waits")["decisions"]
    assert decided[0]["what"] == "refused"
    assert decided[0]["code"] in {"no_capacity", "reserved"}
    assert decided[-1]["what"] == "admitted"
    spent = fresh.json("usage")["items"][0]
    assert abs(spent["cost"] - spent["device_hours"] * 3600) < 1e-6 * spent["cost"], "a GPU for a second costs one"
