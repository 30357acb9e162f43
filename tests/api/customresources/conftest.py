"""Fixtures of the tests of custom resources."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from tests import needs
from tests.api import rig as rigs
from tests.api.customresources import desks
from tests.backends.kubernetes.testcluster import apiserver

from oarlock.spec.cluster import pools


@pytest.fixture(scope="session")
def resource_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apiserver.ApiServer]:
    """An API server with the definition, and nothing else. A test that has it is marked `apiserver.needed`."""
    with apiserver.running(tmp_path_factory.mktemp("resources") / "server") as server:
        with concurrent.futures.ThreadPoolExecutor(1) as thread:  # this one has an event loop already
            why = thread.submit(asyncio.run, desks.define(server)).result()
        if why:
            needs.skip("custom objects", why)
        yield server


@pytest_asyncio.fixture(params=["memory", pytest.param("real", marks=apiserver.needed)])
async def desk(rig: rigs.Rig, request: pytest.FixtureRequest) -> AsyncIterator[desks.Desk]:
    await rig.store.write(lambda tx: tx.put_pool(pools.Pool(name="research")))
    if request.param == "memory":
        yield desks.Desk(rig)
        return
    async with desks.real(rig, request.getfixturevalue("resource_server")) as one:
        yield one


@pytest_asyncio.fixture
async def real_desk(rig: rigs.Rig, resource_server: apiserver.ApiServer) -> AsyncIterator[desks.RealDesk]:
    async with desks.real(rig, resource_server) as one:
        yield one
