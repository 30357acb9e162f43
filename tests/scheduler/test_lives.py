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

from oarlock.spec import holdings

ROUNDS_OF_A_LIFE = 200


def live(seed: int, rounds: int = ROUNDS_OF_A_LIFE) -> lives.Life:
    """A failure is repeated with SEED=... ROUNDS=200."""
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


def test_a_thousand_rounds_with_nodes_that_are_closed_to_some_gangs() -> None:
    """No gang goes to a node whose taint it does not tolerate, or that lacks its label; but gangs do go there."""
    seen = dict.fromkeys(("launches", "preemptions", "resizes", "moves", "refusals"), 0)
    dedicated = labelled = 0
    for seed in range(20):
        life = lives.Life(random.Random(seed), lives.Kind(walls=True))
        for _ in range(50):
            plan = life.step()
            for part in seen:
                seen[part] += len(getattr(plan, part))
            on = [(life.world.nodes[one.node], launch.job) for launch in plan.launches for one in launch.holdings]
            dedicated += sum(bool(node.taints) for node, _ in on)
            held = [life.world.running[job].gang.constraints for _, job in on if job in life.world.running]
            labelled += sum(bool(one.labels) for one in held if one is not None)
    assert min(*seen.values()) > 2, seen
    assert min(dedicated, labelled) > 50, (dedicated, labelled)


@pytest.mark.long
def test_two_thousand_rounds_of_turns_and_pairs() -> None:
    """Gangs that share a device start so, are moved to that, stop where it does not pay, and part when others leave."""
    kind = lives.Kind(policies=("gandiva",), pairs=True, most_nodes=2, most_waiting=3)
    begun = moved = undone = apart = 0
    for seed in range(10):
        life = lives.Life(random.Random(seed), kind)
        for _ in range(200):
            plan = life.step()
            begun += sum(shares(life, launch.holdings) for launch in plan.launches)
            moved += sum(shares(life, move.to) for move in plan.moves)
            undone += sum(not stopped.by for stopped in plan.preemptions)
            apart += sum("free for it alone" in move.reason for move in plan.moves)
    assert min(begun, moved, undone, apart) >= 3, (begun, moved, undone, apart)


def shares(life: lives.Life, claims: tuple[holdings.Holding, ...]) -> bool:
    """Whether it runs on half of a device of which it asks for the whole."""
    one = life.world.running.get(claims[0].job)
    return one is not None and claims[0].amount.gpu_milli > 0 and one.gang.asks[0].amount.gpus == 1


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
