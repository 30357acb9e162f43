"""Turns over a long time: each job that could run does, again and again, whatever else is there."""

from __future__ import annotations

import random

import pytest
from tests import marks
from tests.scheduler import lives, scenario, world

ROUND_S = 60.0
SLICE_S = 300.0


def crowd(seed: int, gangs: int = 10) -> lives.Life:
    """More than fits, nothing ends, and anybody may be stopped."""
    kind = lives.Kind(policies=("gandiva",), faults=False, pools=False, most_nodes=3)
    life = lives.Life(random.Random(seed), kind)
    life.world.rules = world.replace(
        life.world.rules, min_runtime_s=0.0, round_s=ROUND_S, policies={"gandiva": {"slice_s": SLICE_S}}
    )
    for _ in range(gangs):
        gang = life.arrive()
        life.world.waiting[gang.job] = world.replace(gang, preemptible=True)
    return life


def lived(life: lives.Life, rounds: int) -> dict[str, list[int]]:
    """The rounds in which each job runs. A stopped one is gone by the next round, and has made a checkpoint."""
    ran: dict[str, list[int]] = {job: [] for job in life.world.waiting}
    for number in range(rounds):
        life.now += ROUND_S
        life.world.all_gone(life.now)
        plan = life.plan(life.world.snapshot(), life.now, life.memo)
        life.world.carry_out(plan, life.now)
        for job, one in life.world.running.items():
            life.world.running[job] = world.replace(one, checkpoint_at=life.now)
            ran[job].append(number)
    return ran


@pytest.mark.parametrize("seed", marks.long_except(range(2), range(12)))
def test_everybody_has_its_turn_and_has_it_again(seed: int) -> None:
    """Large gangs among small ones, on several kinds of node: no gang waits for longer than all others' slices."""
    life = crowd(seed)
    ran = lived(life, 400)
    slices = SLICE_S / ROUND_S
    longest = len(ran) * (slices + 3)  # a round each to be stopped, to be gone, and to be started
    for job, rounds in ran.items():
        gaps = [after - before for before, after in zip([0, *rounds], [*rounds, 400], strict=True)]
        assert max(gaps) <= longest, (job, max(gaps), life.world.waiting.get(job))


def test_a_plan_says_that_time_alone_may_change_it() -> None:
    """For a gang that might stand better once it has run for long enough, and for two that share a device."""
    cluster = scenario.Cluster()
    for line in (
        "rules policy=gandiva min_runtime=0 restart=10",
        "node a gpus=2",
        "node b gpus=2",
        "running wide tasks=2 gpus=1 on=a,b started=0 checkpoint=0",
        "round now=99",
    ):
        cluster.do(line)
    assert cluster.planned.restless
    cluster.do("finish wide")
    for now, restless in ((200, True), (300, False)):
        cluster.do("running plain tasks=2 gpus=1 on=a,b started=0")
        cluster.do(f"round now={now}")
        assert cluster.planned.restless is restless, "it may yet show that it can resume"
        cluster.do("finish plain")
    cluster.do("running good tasks=2 gpus=1 on=a*2 started=0 checkpoint=0")
    cluster.do("round now=99")
    assert not cluster.planned.restless


def test_a_gang_that_starts_beside_another_is_told_so() -> None:
    cluster = scenario.Cluster()
    for line in (
        "rules policy=gandiva min_runtime=0",
        "node a gpus=1 gpu_memory=80Gi",
        "running one gpus=1 gpu_memory=30Gi on=a started=-100",
        "job two gpus=1 gpu_memory=30Gi at=0",
        "measured one alone=0.1",
        "measured two alone=0.1",
        "round now=0",
        "carry now=0",
        "gone one now=1",
        "round now=1",
        "carry now=1",
        "finish two",
        "job three gpus=1 gpu_memory=30Gi at=2",
        "measured three alone=0.1",
        "plan now=5",
    ):
        cluster.do(line)
    (launch,) = cluster.planned.launches
    assert launch.reason == "it shares a GPU with one; number 1 of 1 in the order of turns, after 3 s of waiting"


@pytest.mark.parametrize("crowded", marks.long_except([(3, 2)], [(3, 2), (7, 4), (9, 2)]))
def test_equals_get_the_same_time(crowded: tuple[int, int]) -> None:
    gangs, places = crowded
    cluster = scenario.Cluster()
    cluster.do(f"rules policy=gandiva min_runtime=0 restart=0 gandiva.slice_s={SLICE_S}")
    cluster.do(f"node a gpus={places} cpus=64")
    for number in range(gangs):
        cluster.do(f"job j{number} gpus=1")
    life = crowd(0, gangs=0)
    life.world = cluster.world
    ran = {job: len(rounds) for job, rounds in lived(life, 1000).items()}
    share = sum(ran.values()) / gangs
    assert sum(ran.values()) > 0.8 * 1000 * places, "and little time is lost between them"
    assert all(0.9 * share < rounds < 1.1 * share for rounds in ran.values()), ran
