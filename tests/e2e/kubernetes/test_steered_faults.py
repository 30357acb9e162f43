"""The server is killed between the writes of a launch in mode `steer`: the stock scheduler binds the pods meanwhile.

The scheduler here binds each pod to the node that its affinity names, full or not: a gang that the server lets live
next to another one shows as a node that gives more than it has.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.backends.kubernetes.testcluster import apiserver
from tests.e2e.kubernetes import pods, test_pod_faults

from oarlock.backends.kubernetes.apiserver import objects
from oarlock.backends.kubernetes.pods import podstates
from oarlock.spec import errors

pytestmark = apiserver.needed

SCHEDULER = "default-scheduler"


class SteeredShell(test_pod_faults.FaultShell):
    """A user of a cluster with a scheduler that binds pods."""

    def __init__(self, folder: Path, api_server: apiserver.ApiServer) -> None:
        super().__init__(folder, api_server)
        self.held: set[int] = set()  # the tasks, by index, that it does not bind yet
        self._scheduling: asyncio.Task[None] | None = None

    def configure(self, more: str = "") -> None:
        super().configure(f'mode = "steer"\n{more}')

    async def _open(self) -> None:
        await super()._open()
        self._scheduling = asyncio.create_task(self._schedule())

    async def _close(self) -> None:
        if self._scheduling is not None:
            self._scheduling.cancel()
            await asyncio.gather(self._scheduling, return_exceptions=True)
        await super()._close()

    async def _schedule(self) -> None:
        while True:
            for pod in list(self.cluster._watch.items.values()):
                key = podstates.key(pod)
                if key is not None and key.index not in self.held and pod.spec.scheduler_name == SCHEDULER:
                    await self._bind(pod)
            await asyncio.sleep(0.05)

    async def _bind(self, pod: objects.Pod) -> None:
        if pod.spec.node_name or pod.metadata.deletion_timestamp:
            return
        path = f"{self.cluster.path('pods')}/{pod.metadata.name}"
        with contextlib.suppress(errors.NotFound, errors.Conflict):  # it is gone, or bound by now
            spec = (await self._api.get(path, dict[str, Any]))["spec"]
            required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            (node,) = required["nodeSelectorTerms"][0]["matchFields"][0]["values"]
            await self._api.bind(self.namespace, pod.metadata.name, pod.metadata.uid, node)

    def is_whole(self, *names: str) -> None:
        super().is_whole(*names)
        assert self._scheduling is not None
        assert not self._scheduling.done(), "it has bound until now"

    def bound(self) -> list[str]:
        return [pod.metadata.name for pod in self.pods() if pod.spec.node_name]


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pods.Clusters[SteeredShell]]:
    with pods.shared(lambda: test_pod_faults.opened(tmp_path_factory.mktemp("steered"), SteeredShell)) as made:
        yield made


@pytest.fixture
def shell(clusters: pods.Clusters[SteeredShell], request: pytest.FixtureRequest) -> Iterator[SteeredShell]:
    with clusters.serving(request.node) as one:
        yield one
        one.held.clear()


@pytest.mark.parametrize("write", range(1, 4))
def test_the_server_is_killed_before_each_write_of_a_launch(shell: SteeredShell, write: int) -> None:
    """A Secret and two pods. The next server completes the same gang: no pod is made twice."""
    name = f"killed-{write}"
    shell.outlives_a_kill(name, before=write)


@pytest.mark.parametrize("held", [{0, 1}, {1}], ids=["before the first binding", "before the second binding"])
def test_the_server_is_killed_between_the_bindings(shell: SteeredShell, held: set[int]) -> None:
    """They are writes of the scheduler, which goes on while no server runs."""
    name = f"bound-{2 - len(held)}"
    shell.held |= held
    shell.begin(name)
    shell.until(lambda: len(shell.pods()) == 2 and len(shell.bound()) == 2 - len(held), "the pods are made")
    shell.kill_server()
    shell.held.clear()
    shell.until(lambda: len(shell.bound()) == 2, "both are bound")
    shell.start_server()
    shell.is_whole(name)
    assert shell.starts(name) == 2, "each task was started once"


def test_a_gang_that_was_bound_in_part_under_a_dead_server_is_removed_whole(shell: SteeredShell) -> None:
    """The scheduler finds no place for one pod. The next server has the rest of the time, and then gives the gang up.
    Later it starts as a whole.
    """
    shell.held.add(1)
    shell.begin("part")
    shell.until(lambda: len(shell.pods()) == 2 and len(shell.bound()) == 1, "one pod is bound")
    shell.kill_server()
    shell.start_server()
    shell.until(lambda: len(shell.job("part")["attempts"]) > 1, "the gang was given up")
    shell.held.clear()
    shell.is_whole("part")
