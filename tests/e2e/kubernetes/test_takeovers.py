"""A leader that stands still in a launch, and wakes when another server leads: two real servers, and a real API server.

The nodes and gangs are those of `test_pod_faults`: one gang fits at a time, so that whatever the woken server still
makes shows as a node that gives more than it has, or as a second life of a job.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.backends.kubernetes.testcluster import apiserver
from tests.e2e.kubernetes import pods, test_pod_faults, test_replicas
from tests.store import postgresql

pytestmark = apiserver.needed


class TakeoverShell(test_replicas.ReplicaShell, test_pod_faults.FaultShell):
    """A user of two servers, whose cluster is looked at all the time."""

    def begin_anew(self, write: int) -> int:
        """Start both servers again. The first one leads, and stops before this write of its next launch. Return its
        process.
        """
        for place in (self.second, self.first):
            self.use(place)
            self.do("down", code=None)
        self.ready = [self.first[0]]
        self.start_server(self.at_write(write, "stop"))
        pid = self.server_pid()
        self.use(self.second)
        self.start_server()
        self.ready = [self.second[0]]  # a server that stands still fails its probe
        self.count_writes()
        return pid


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[TakeoverShell]:
    with postgresql.running() as postgres, apiserver.running(folder / "api") as server:
        one = TakeoverShell(folder / "user", server, postgres.url(postgres.make()))
        try:
            one.open()
            one.start_second()
            yield one
        finally:
            for place in (one.first, one.second):
                one.use(place)
                one.end_server()
            one.close()


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pods.Clusters[TakeoverShell]]:
    with pods.shared(lambda: opened(tmp_path_factory.mktemp("takeovers"))) as made:
        yield made


@pytest.fixture
def shell(clusters: pods.Clusters[TakeoverShell], request: pytest.FixtureRequest) -> Iterator[TakeoverShell]:
    with clusters.serving(request.node) as one:
        yield one


def stands_still(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize("write", range(1, 6))
def test_a_leader_wakes_after_the_takeover(shell: TakeoverShell, write: int) -> None:
    """It stood still before the Secret, its first or second pod, or its first or second binding. The other server has
    launched and ended the job meanwhile, and the next gang has the nodes. A Secret that was made late is removed, too.
    """
    paused, follows = f"paused-{write}", f"follows-{write}"
    release = shell.home.parent / f"release-{write}"
    pid = shell.begin_anew(write)
    epoch = shell.epoch(shell.second)
    try:
        shell.begin(paused)
        shell.until(lambda: stands_still(pid), "the leader stands still")
        with shell.within(test_replicas.TAKEOVER_S, "the takeover"):
            shell.until(lambda: shell.epoch(shell.second) == epoch + 1, "the other server leads")
        assert shell.wait_phase(paused, "COMPLETED", "FAILED")["phase"] == "COMPLETED"
        shell.begin(follows, f"while [ ! -e {release} ]; do sleep 0.1; done")
        shell.wait_phase(follows, "PROCESSING")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert shell.epoch(shell.first) == epoch + 1, "it is awake, and does not lead"
    job = shell.job(paused)["id"]
    with shell.settles():
        shell.until(lambda: not [one for one in shell.pod_names() if one.startswith(job)], "the ended job has no pod")
    release.touch()
    shell.is_whole(paused, follows)
    for name in (paused, follows):
        attempts = shell.job(name)["attempts"]
        assert len(attempts) == 1, [one["verdict"] for one in attempts]
        assert shell.starts(name) == 2, "each task was started once"
