"""A listening server for each test of this room, and both clients for each test of a client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.client import driven, live

import oarlock


@pytest.fixture
def server(home: Path) -> Iterator[live.LiveServer]:
    with live.LiveServer(home) as started:
        yield started


@pytest.fixture(params=[oarlock.Client, driven.DrivenClient], ids=["Client", "AsyncClient"])
def new_client(request: pytest.FixtureRequest) -> driven.NewClient:
    """The class of each client in turn; the asynchronous one has the calls of the other."""
    return request.param
