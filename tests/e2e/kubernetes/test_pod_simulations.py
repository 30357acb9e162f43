"""A simulation as a pod of the server's own image: the same figures as where the command runs on its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.backends.kubernetes.testcluster import apiserver
from tests.e2e import test_simulations
from tests.e2e.kubernetes import pods

pytestmark = apiserver.needed


@pytest.fixture
def shell(tmp_path_factory: pytest.TempPathFactory, api_server: apiserver.ApiServer) -> Iterator[pods.PodShell]:
    with pods.opened(tmp_path_factory.mktemp("user"), api_server) as one:
        yield one


def test_a_simulation_runs_in_the_image_of_the_server(shell: pods.PodShell) -> None:
    file = str(shell.write("scenario.yaml", test_simulations.SCENARIO))
    flags = ("--policy", "fifo", "--policy", "las", "--seed", "7")
    there = shell.json("simulate", file, *flags, "--on-server")
    here = shell.json("simulate", file, *flags)
    assert [one["figures"] for one in there] == [one["figures"] for one in here]
    job = shell.job("simulation")
    assert (job["phase"], job["spec"]["image"]) == ("COMPLETED", "registry.example/oarlock:1")
