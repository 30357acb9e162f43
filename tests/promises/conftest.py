"""Homes with real servers; nothing of one is left when its test ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.promises.house", "tests.promises.crews")

from tests.promises import house as houses  # noqa: E402 - after what is to be rewritten was named


@pytest.fixture
def house(tmp_path: Path) -> Iterator[houses.House]:
    one = houses.House(tmp_path)
    yield one
    one.close()
