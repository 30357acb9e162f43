"""Fixtures of the tests against a real API server."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.backends.kubernetes.testcluster import apiserver, rights

from oarlock.backends.kubernetes.apiserver import client, credentials, objects

_numbers = itertools.count(1)


def access(server: apiserver.ApiServer, token: str = "admin-token") -> credentials.Access:
    environ = {"KUBECONFIG": str(server.kubeconfig(token))}
    return credentials.find(environ, clock=time.time, monotonic=time.monotonic)


@pytest.fixture(scope="session")
def mortal_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apiserver.ApiServer]:
    """One for the files that store custom objects: a first one may end it, and it starts again."""
    with apiserver.running(tmp_path_factory.mktemp("objects") / "server") as server:
        yield server


@pytest.fixture
async def api(api_server: apiserver.ApiServer) -> AsyncIterator[client.Client]:
    async with client.Client(access(api_server)) as opened:
        yield opened


@pytest.fixture
async def namespace(api: client.Client) -> str:
    """A namespace of this test's own, in which the server has its rights."""
    name = f"test-{next(_numbers)}"
    await api.create("/api/v1/namespaces", {"metadata": {"name": name}}, objects.Bare)
    await rights.grant(api, name)
    return name
