"""The planner by itself through the lives of random clusters, with faults: every plan is checked.

The ordinary suite makes a thousand rounds. `make soak` makes a million: SEED repeats one life, or says with which to
begin; ROUNDS says how many rounds, SOAK_S for how many seconds at most, so that it can be made in pieces:

    make soak SEED=1000000 ARGS="tests/scheduler/test_lives.py -s" ROUNDS=100000
"""

from __future__ import annotations

import os
import random
import time

import pytest
from tests.scheduler import lives

ROUNDS_OF_A_LIFE = 200


def live(seed: int, rounds: int = ROUNDS_OF_A_LIFE) -> lives.Life:
    """Whoever reads of a failure repeats it with SEED=... ROUNDS=200."""
    life = lives.Life(random.Random(seed))
    try:
        for _ in range(rounds):
            life.step()
    except Exception as broken:
        broken.add_note(f"SEED={seed}, round {life.rounds}")
        raise
    return life


def test_a_thousand_rounds() -> None:
    """Enough of everything happens for the checks to see something."""
    seen = dict.fromkeys(("launches", "preemptions", "resizes", "moves", "refusals"), 0)
    for seed in range(20):
        life = lives.Life(random.Random(seed))
        for _ in range(50):
            plan = life.step()
            for part in seen:
                seen[part] += len(getattr(plan, part))
    assert min(seen.values()) > 3, seen


@pytest.mark.soak
def test_a_million_rounds() -> None:
    first = int(os.environ.get("SEED") or random.SystemRandom().randrange(10**9))
    wanted = int(os.environ.get("ROUNDS") or 1_000_000)
    until = time.monotonic() + float(os.environ.get("SOAK_S") or "inf")
    done, seed = 0, first
    while done < wanted and time.monotonic() < until:
        done += live(seed).rounds
        seed += 1
        if (seed - first) % 50 == 0:
            print(f"{done:,} rounds, SEED={first} to {seed - 1}", flush=True)
    print(f"{done:,} rounds, SEED={first} to {seed - 1}", flush=True)
