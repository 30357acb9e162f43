"""Each file in scenarios/ is a small cluster, jobs arriving, and the plan and the words that must come out."""

from __future__ import annotations

import re
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


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("job one task=2", "job has no option 'task='"),
        ("rules las.patience=0", "rules has no option 'las.patience='"),
        ("rules lass.patience_s=0", "rules has no option 'lass.patience_s='"),
        ("pool a limit.gpu=4", "pool has no option 'limit.gpu='"),
        ("job one spread=no", "job has no option 'spread='"),
        ("job one gpus", "job has no option 'gpus'"),
        ("plan nw=0", "plan has no option 'nw='"),
        ("job gpus=1", "job needs a name"),
        ("plan", None),
        ("down", "down needs a name"),
        ("job one gpus=1 gpus=2", "'gpus' is given twice"),
        ("jobs one", "there is no verb 'jobs'"),
    ],
)
def test_a_word_that_a_scenario_does_not_know_is_refused(line: str, complaint: str | None) -> None:
    if complaint is None:
        scenario.read(line)
    else:
        with pytest.raises(ValueError, match=re.escape(complaint)):
            scenario.read(line)
