"""Connections that are reset while all members of an elastic gang live: they go on in their processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.train import resets
from tests.train.rounds import counting as counts
from tests.train.rounds import gang


@pytest.mark.parametrize("most", [None, 1], ids=["all", "one"])
def test_members_whose_connections_are_reset_meet_again(tmp_path: Path, most: int | None) -> None:
    """One broken connection is enough: the exchanges of the others cannot end either."""
    made = gang.Gang(tmp_path, counts.count, 0.002)
    names = ["a", "b", "c"]
    try:
        made.start(names)
        made.wait(lambda: all(map(made.ready, names)))
        for number in (2, 3):
            before = {name: counts.reached(made, name) for name in names}
            made.wait(lambda before=before: all(counts.reached(made, name) > before[name] + 3 for name in names))
            pids = [process.pid for process in made.processes.values()]
            resets.reset_between(pids, most, but=made.ports.values() if most else ())  # the stores' are idle
            made.meet_again(names)
            made.wait(lambda number=number: all(made.rounds(name)[-1:] == [number] for name in names))
        counts.end(made, names, losses=2)
    finally:
        made.close()
