"""Each file in scenarios/ is a small cluster, jobs arriving, and the plan and the words that must come out."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.scheduler import scenario

FILES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    cluster = scenario.Cluster()
    asked = 0
    for lines, expected in scenario.blocks(path.read_text()):
        printed = [cluster.do(line) for line in lines][-1]
        assert printed == expected, f"{path.name}: {lines[-1]}"
        asked += bool(expected)
    assert asked, f"{path.name} expects nothing"
