"""The device-seconds of an attempt: all that it has held, and the useful part, in which its gang was PROCESSING."""

from __future__ import annotations

import pytest
from tests.lifecycle import script

ROLES = "roles: {worker: {count: 2, gpus: 1}}"
BEGIN = ("admit", "launched", "after 30", "register worker-0 worker-1", "after 10", "report worker-0 PROCESSING")


@pytest.mark.parametrize(
    ("spec", "lines", "held", "useful"),
    [
        ("{%s}", ("admit", "launched", "after 30"), 60, 0),
        ("{%s}", (*BEGIN, "after 100"), 280, 200),
        ("{%s}", (*BEGIN, "after 100", "report worker-0 STORING", "report worker-1 STORING", "after 20"), 320, 200),
        ("{%s, freeze: 30m}", (*BEGIN, "after 100", "exit worker-0 code=1", "after 1", "do", "after 600"), 1482, 200),
        ("{%s, grace: 5m}", (*BEGIN, "after 100", "intend halt", "after 60"), 400, 200),
        (
            "{framework: torch, roles: {worker: {count: 4, min: 2, max: 4, gpus: 1}}}",
            (
                "admit",
                "launched",
                "register worker-0 worker-1 worker-2 worker-3",
                *(f"report worker-{index} PROCESSING rejoin" for index in range(4)),
                "after 100",
                "reshape worker=2",
                "after 10",
                "reshape worker=4",
                "after 10",
            ),
            480,
            480,
        ),
    ],
    ids=["launching", "processing", "storing", "frozen", "halting", "reshaped"],
)
def test_the_useful_part_is_that_of_processing(spec: str, lines: tuple[str, ...], held: float, useful: float) -> None:
    play = script.Play()
    for line in (f"job {spec % ROLES if '%s' in spec else spec}", *lines):
        play.run(line)
    spent = play.live.spent_at(play.now)
    assert (spent.device_s, spent.useful_s) == (pytest.approx(held), pytest.approx(useful))
