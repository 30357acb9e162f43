"""The judgement of `oarlock doctor` at its thresholds."""

from __future__ import annotations

import pytest

from oarlock.display import findings
from oarlock.display.findings import State

GIB = 1 << 30


@pytest.mark.parametrize(
    ("finding", "state", "said"),
    [
        (findings.disk("/h", 100 * GIB, GIB - 1), State.PROBLEM, "the disk is full"),
        (findings.disk("/h", 100 * GIB, GIB), State.WARNING, "the disk is nearly full"),
        (findings.disk("/h", 100 * GIB, 5 * GIB), State.GOOD, "5 GiB of 100 GiB are free for /h"),
        (findings.shared_memory("/shm", (64 << 20) - 1), State.WARNING, "data loaders"),
        (findings.shared_memory("/shm", 64 << 20), State.GOOD, "64 MiB"),
        (findings.file_system("/h", "nfs4"), State.PROBLEM, "network file system (nfs4)"),
        (findings.file_system("/h", "ext4"), State.GOOD, "/h is on ext4"),
        (findings.file_clock("/h", 3.0), State.PROBLEM, "3 s ahead of the clock"),
        (findings.file_clock("/h", -3.0), State.PROBLEM, "3 s behind the clock"),
        (findings.file_clock("/h", 2.0), State.GOOD, ""),
        (findings.server_clock(-600.0), State.PROBLEM, "600 s apart"),
        (findings.server_clock(5.0), State.GOOD, ""),
        (findings.token_file("/h/token", 0o640), State.PROBLEM, "/h/token can be read by others (mode 640)"),
        (findings.token_file("/h/token", 0o600), State.GOOD, ""),
        (findings.cgroups_v1(["cpu", "memory"]), State.GOOD, ""),
        (findings.cgroups_v1(["cpu"]), State.INFO, "only cpu"),
        (findings.cgroups_v1([]), State.INFO, "limits are not enforced"),
        (findings.cgroups_v2("/sys/fs/cgroup/a", delegated=False), State.INFO, "Delegate=yes"),
        (findings.cgroups_v2("/sys/fs/cgroup/a", delegated=True), State.GOOD, ""),
    ],
)
def test_a_measured_value_is_judged(finding: findings.Finding, state: State, said: str) -> None:
    assert finding.state is state
    assert said in finding.message
    assert bool(finding.fix) == (state in (State.PROBLEM, State.WARNING)), "a problem has its next step"
