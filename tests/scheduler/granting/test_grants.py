"""The turns of a plan: which gang starts, borrows, is let in by others or waits, and the number of gangs before it."""

from __future__ import annotations

import pytest
from tests.scheduler import drafted, scenario, world

from oarlock.scheduler.granting import drafts, grants
from oarlock.spec import curves, plans, refusals

Code = refusals.Code


def planned(of: drafts.Draft | world.World | str) -> plans.Plan:
    draft = of if isinstance(of, drafts.Draft) else drafted.draft(of)
    return grants.Granting(draft).plan()


def codes(plan: plans.Plan) -> dict[str, tuple[str, int]]:
    """Return the reason of each gang that waits, and the number of gangs before it."""
    return {job: (one.code.value, one.ahead) for job, one in plan.refusals.items()}


def starts(plan: plans.Plan) -> dict[str, list[str]]:
    return {one.job: drafted.places(one.holdings) for one in plan.launches}


FULL = "rules policy=fifo\nnode a gpus=2 cpus=4\nrunning x gpus=2 on=a\n"


def test_a_gang_behind_two_that_wait_for_the_same_has_its_turn() -> None:
    """The second gang is refused as the first one was. The third asks for something else, and it is there."""
    plan = planned(f"{FULL}job one gpus=2\njob two gpus=2\njob three cpus=1")
    assert codes(plan) == {"one": ("no_capacity", 0), "two": ("no_capacity", 1)}
    assert starts(plan) == {"three": ["a"]}


@pytest.mark.parametrize("pools", ["", "pool default limit.gpus=9\n"], ids=["one pool", "a bounded pool"])
def test_every_gang_is_told_how_many_wait_before_it(pools: str) -> None:
    plan = planned(f"{FULL}{pools}job one gpus=2\njob two gpus=2\njob three gpus=2\njob four gpus=1")
    assert [ahead for _, ahead in codes(plan).values()] == [0, 1, 2, 3]


def test_the_number_counts_the_gangs_of_the_same_pool() -> None:
    plan = planned(f"{FULL}pool p\njob one gpus=2\njob other gpus=2 pool=p\njob two gpus=2\njob next gpus=1 pool=p")
    assert {job: ahead for job, (_, ahead) in codes(plan).items()} == {"one": 0, "two": 1, "other": 0, "next": 1}


def test_a_gang_for_which_only_a_kept_place_is_free_is_told_so() -> None:
    """Two devices are kept for the gang that came first, until the others end."""
    plan = planned(
        "rules policy=fifo\nnode a gpus=4\nrunning x gpus=2 on=a end=11000\njob big gpus=4\njob small gpus=1"
    )
    assert codes(plan) == {"big": ("no_capacity", 0), "small": ("reserved", 1)}
    assert plan.refusals["small"].until == 11_000.0
    assert plan.refusals["big"].kept == ("a",)


def test_a_gang_that_ends_in_time_starts_in_the_kept_place() -> None:
    plan = planned(
        "rules policy=fifo\nnode a gpus=4\nrunning x gpus=2 on=a end=11000\njob big gpus=4\n"
        "job long gpus=1 timeout=1001\njob short gpus=1 timeout=1000"
    )
    assert starts(plan) == {"short": ["a[2]"]}
    assert plan.launches[0].reason.startswith("it is over before the place of big is free")
    assert codes(plan) == {"big": ("no_capacity", 0), "long": ("reserved", 1)}


def test_a_gang_that_ends_in_time_keeps_to_the_limit_that_is_still_held() -> None:
    """The stopping gang holds four devices of the limit until its processes are gone."""
    lines = (
        "rules policy=fifo\nnode a gpus=4 cpus=4\nnode b gpus=1\nnode c gpus=1\nnode d gpus=1\nnode e gpus=1\n"
        "pool p limit.gpus={}\nrunning x gpus=2 on=a end=11000\nrunning y tasks=4 gpus=1 on=b,c,d,e pool=p stopping\n"
        "job big gpus=4 pool=p\njob short gpus=1 cpus=1 timeout=1000 pool=p"
    )
    assert starts(planned(lines.format(4))) == {}
    assert starts(planned(lines.format(5))) == {"short": ["a[2]"]}


def test_without_backfill_no_gang_passes_the_first_one() -> None:
    lines = f"{FULL}job one gpus=1\njob two cpus=1"
    assert starts(planned(lines)) == {"two": ["a"]}
    plan = planned(lines.replace("policy=fifo", "policy=fifo backfill=no"))
    assert codes(plan) == {"one": ("no_capacity", 0), "two": ("behind", 1)}


def test_a_gang_that_backs_off_takes_nothing() -> None:
    lines = "rules policy=fifo\nnode a gpus=1\njob one gpus=1 not_before={}\njob two gpus=1"
    assert starts(planned(lines.format(10_001))) == {"two": ["a[0]"]}
    assert codes(planned(lines.format(10_001)))["one"] == ("backing_off", 0)
    assert starts(planned(lines.format(10_000))) == {"one": ["a[0]"]}


def test_a_gang_that_must_not_be_preempted_does_not_pass_one_of_its_pool_that_waits() -> None:
    """Its place could not be taken back. It may pass the gangs of other pools."""
    lines = (
        "rules policy=gandiva\nnode a gpus=2 cpus=2\npool p reserve.cpus=1 reserve.gpus=2\n"
        "running x gpus=1 on=a preemptible=no\njob one gpus=2 pool={}\njob fixed cpus=1 pool=p preemptible=no"
    )
    assert codes(planned(lines.format("p")))["fixed"] == ("behind", 1)
    assert starts(planned(lines.format("default"))) == {"fixed": ["a"]}


# Borrowing

LENT = """
rules policy=priority min_runtime=0
node a gpus=4
pool x reserve.gpus=2 share.gpus=0
pool y reserve.gpus=2 share.gpus=0
pool default share.gpus=0
"""


def test_idle_devices_of_other_pools_are_borrowed() -> None:
    plan = planned(f"{LENT}running a gpus=2 on=a pool=x\njob more tasks=2 gpus=1 pool=x")
    assert starts(plan) == {"more": ["a[2]", "a[3]"]}
    assert not plan.refusals


def test_devices_that_are_being_freed_are_borrowed_too() -> None:
    plan = planned(f"{LENT}running a gpus=2 on=a pool=x\nrunning b gpus=2 on=a pool=y stopping\njob more gpus=2 pool=x")
    assert codes(plan) == {"more": ("stopping", 0)}
    assert plan.refusals["more"].kept == (), "no gang is stopped for it"


def test_no_gang_borrows_before_the_entitled_ones_are_served() -> None:
    plan = planned(
        f"{LENT}running a gpus=2 on=a pool=x priority=900\njob more gpus=2 pool=x priority=900\njob own gpus=2 pool=y"
    )
    assert starts(plan) == {"own": ["a[2, 3]"]}
    assert codes(plan) == {"more": ("pool_share", 0)}


BEYOND = """
rules policy=priority min_runtime=0
node one gpus=1
node two gpus=1
node large gpus=2
node full gpus=3
pool x reserve.gpus=1 share.gpus=0
pool y reserve.gpus=1 share.gpus=0
pool z reserve.gpus=5
pool default share.gpus=0
running x1 gpus=1 on=one pool=x priority=10
running x2 gpus=1 on=two pool=x priority=10
running y1 gpus=2 on=large pool=y priority=10
running y2 gpus=3 on=full pool=y priority=10
"""
"""Each pool is entitled to one device, and the idle pool z to 5: x holds one device of z, and y holds four."""


def test_beyond_its_entitlement_a_pool_takes_the_places_of_its_own_gangs_alone() -> None:
    plan = planned(f"{BEYOND}job urgent gpus=1 pool=x priority=900")
    assert [(one.job, one.by) for one in plan.preemptions] == [("x1", "urgent")]
    plan = planned(f"{BEYOND}job urgent gpus=2 pool=x priority=900")
    assert plan.preemptions == (), "only the gang of the other pool has two devices of one node"
    assert codes(plan) == {"urgent": ("pool_share", 0)}


def test_a_pool_takes_back_the_devices_that_it_has_lent() -> None:
    plan = planned(f"{BEYOND}job own gpus=2 pool=z")
    assert [(one.job, one.by) for one in plan.preemptions] == [("y1", "own")]
    assert codes(plan)["own"] == ("stopping", 0)
    assert plan.refusals["own"].kept == ("large",)


# Policies that decide sizes


def sized(of: drafts.Draft, *wanted: tuple[str, int], pool: str = "") -> drafts.Draft:
    """Let a policy decide these sizes, in this order."""
    turns = [
        world.replace(drafted.turn(of, job, size=(size,), reason=f"{size} for {job}"), sizing=True)
        for job, size in wanted
    ]
    drafted.wished(of, *turns, pool=pool)
    return of


ELASTIC = """
rules policy=priority min_runtime=0 restart=30
node a gpus=4
running large tasks=3 min=1 max=4 gpus=1 on=a*3
running small tasks=1 max=4 gpus=1 on=a
"""


def test_a_gang_grows_into_the_place_of_one_that_shrinks() -> None:
    draft = sized(drafted.draft(ELASTIC), ("small", 3), ("large", 1))
    plan = planned(draft)
    assert {one.job: (one.size, one.by, one.reason) for one in plan.resizes} == {
        "large": ((1,), "small", "to make room for small"),
        "small": ((3,), "", "3 for small"),
    }


def test_a_gang_grows_only_by_as_much_as_there_is() -> None:
    """Without a gang that shrinks, it grows into the free devices alone."""
    draft = drafted.draft(ELASTIC.replace("gpus=4", "gpus=6").replace("on=a\n", "on=a started=9999\n"))
    plan = planned(sized(draft, ("small", 4), ("large", 3)))
    assert {one.job: one.size for one in plan.resizes} == {"small": (3,)}


def test_a_gang_that_starts_may_have_a_smaller_size_than_was_wished() -> None:
    lines = "rules policy=priority\nnode a gpus=3\njob one tasks=4 min=2 gpus=1"
    plan = planned(sized(drafted.draft(lines), ("one", 4)))
    assert starts(plan) == {"one": ["a[0]", "a[1]", "a[2]"]}
    cluster = drafted.cluster(lines)
    draft = drafted.draft(cluster, reallocate=False)
    plan = planned(sized(draft, ("one", 4)))
    assert not plan.launches, "once others may give way, the size is right"


def test_a_wish_of_nothing_is_a_refusal() -> None:
    plan = planned(sized(drafted.draft("rules policy=priority\nnode a gpus=3\njob one gpus=1"), ("one", 0)))
    assert codes(plan) == {"one": ("outranked", 0)}


# Shared devices

SHARED = (
    "rules policy=gandiva min_runtime=0 restart=100 gandiva.slice_s=1000",
    "node a gpus=1:a100 gpu_memory=80Gi",
    "node small gpus=1:h100 gpu_memory=16Gi",
    "pool default limit.gpus=2",
    "running host gpus=1 gpu_memory=30Gi on=a started=-100 at=0",
    "job guest gpus=1 gpu_memory=30Gi at=1",
    "measured host alone=0.1",
    "measured guest alone=0.1",
)


def test_a_guest_starts_as_soon_as_its_host_holds_half_of_the_device() -> None:
    cluster = scenario.Cluster()
    for line in SHARED:
        cluster.do(line)
    assert cluster.do("round now=0") == (
        "guest: stopping: Its place is being cleared: host is being stopped.\n"
        "host: moved to a[0]: it shares its GPU with guest, which waits"
    )
    assert cluster.do("detail guest") == "guest: ahead=0 kept=a", "the next plan knows its place"
    for line in ("carry now=0", "gone host now=1"):
        cluster.do(line)
    assert starts(planned(drafted.draft(cluster.world, now=1.0))) == {"host": ["a[0]/2"], "guest": ["a[0]/2"]}
    cluster.do("pool default limit.gpus=1")
    assert starts(planned(drafted.draft(cluster.world, now=1.0))) == {"host": ["a[0]/2"]}, "its pool has no more"


def test_a_guest_is_told_with_which_gang_it_shares() -> None:
    cluster = scenario.Cluster()
    for line in SHARED:
        cluster.do(line)
    for line in ("round now=0", "carry now=0", "gone host now=1", "round now=1"):
        cluster.do(line)
    told = {one.job: one.reason for one in cluster.planned.launches}
    assert told["guest"].startswith("it shares a GPU")


def test_a_gang_whose_pool_still_reaches_its_limit_is_told_the_number_before_it() -> None:
    """The stopping gang holds the limit; the devices of another node are free."""
    plan = planned(
        "rules policy=fifo\nnode a gpus=2\nnode b gpus=2\npool p limit.gpus=2\nrunning x gpus=2 on=a pool=p stopping\n"
        "job first gpus=2 pool=p not_before=10001\njob one gpus=2 pool=p"
    )
    assert codes(plan) == {"first": ("backing_off", 0), "one": ("stopping", 1)}


@pytest.mark.parametrize(("runs", "batches"), [(None, True), (8, False), (4, True)])
def test_a_running_gang_gets_the_batch_size_that_its_policy_decides(runs: int | None, batches: bool) -> None:
    of = drafted.cluster("rules policy=priority min_runtime=0\nnode a gpus=2\nrunning one gpus=1 on=a")
    had = None if runs is None else curves.Batch(runs)
    of.running["one"] = world.replace(of.running["one"], batch=had)
    for reallocate in (True, False):
        draft = drafted.draft(of, reallocate=reallocate)
        drafted.wished(draft, drafted.turn(draft, "one", batch=curves.Batch(8)))
        assert planned(draft).batches == ({"one": curves.Batch(8)} if batches and reallocate else {})


def test_an_elastic_gang_gives_back_no_more_than_its_pool_has_borrowed() -> None:
    plan = planned(
        "rules policy=priority min_runtime=0\nnode a gpus=4\npool x reserve.gpus=2 share.gpus=0\n"
        "pool y reserve.gpus=2 share.gpus=0\npool default share.gpus=0\n"
        "running wide tasks=4 min=1 max=4 gpus=1 on=a*4 pool=y\njob own gpus=1 pool=x"
    )
    assert {one.job: (one.size, one.by) for one in plan.resizes} == {"wide": ((3,), "own")}
    assert plan.preemptions == ()


def test_among_many_gangs_those_that_rank_lowest_give_way() -> None:
    """The gang of priority 50 has lost least work, but 32 gangs of priority 10 are enough to choose from."""
    low = "".join(f"running low{number} gpus=1 on=a started={number} priority=10\n" for number in range(32))
    plan = planned(
        "rules policy=priority min_runtime=60\nnode a gpus=33\n"
        f"{low}running high gpus=1 on=a started=9900 priority=50\njob new gpus=1 priority=90"
    )
    assert [stopped.job for stopped in plan.preemptions] == ["low31"]
