"""A listening server for each test of this room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.client import live


@pytest.fixture
def server(home: Path) -> Iterator[live.LiveServer]:
    with live.LiveServer(home) as started:
        yield started
