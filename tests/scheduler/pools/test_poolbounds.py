"""The bounds on the holdings of each pool: which gang is within them, and which share of them is kept for another."""

from __future__ import annotations

import pytest
from tests.scheduler import drafted

from oarlock.scheduler import amounts
from oarlock.scheduler.pools import poolbounds
from oarlock.spec import holdings, plans

NOW = drafted.NOW
LIMIT, RESERVATION, ENTITLEMENT, STATIC = poolbounds.Kind


def gang(pool: str = "x", job: str = "new", **known: object) -> plans.Gang:
    """Return a gang of which only the pool, the time-out and the permission to preempt it matter."""
    ask = plans.Ask(role="worker", count=1, min=1, max=1, amount=holdings.Resources(gpus=1))
    return plans.Gang(job=job, name=job, pool=pool, asks=(ask,), submitted_at=0.0, **known)  # type: ignore[arg-type]


def bounds(lines: str) -> poolbounds.PoolBounds:
    return drafted.draft(lines).bounds


def gpus(count: int, cpus: int = 0) -> amounts.Amount:
    return count * 1000, cpus * 1000, 0


def told(over: poolbounds.Over | None) -> tuple[object, ...] | None:
    return over and (over.pool, over.resource, over.used, over.bound, over.kind)


def limit(over: poolbounds.Over | None) -> tuple[object, ...] | None:
    """Return the limit that is exceeded; None where there is none, whatever else is exceeded."""
    return (over and over.kind is LIMIT and (over.pool, over.used, over.bound)) or None


# Limits

TEAM = """
node n gpus=16 cpus=16
pool team limit.gpus=6
pool x parent=team limit.gpus=4
pool y parent=team
running a gpus=2 on=n pool=x
running b gpus=1 on=n pool=y
"""


@pytest.mark.parametrize(
    ("pool", "asked", "over"),
    [
        ("x", 2, None),
        ("x", 3, ("x", 2, 4)),
        ("y", 3, None),  # exactly the rest of the team's limit
        ("y", 4, ("team", 3, 6)),
        ("team", 4, ("team", 3, 6)),
        ("default", 9, None),
    ],
)
def test_a_limit_bounds_the_pool_and_everything_below_it(
    pool: str, asked: int, over: tuple[object, ...] | None
) -> None:
    assert limit(bounds(TEAM).over(gang(pool), gpus(asked))) == over


def test_a_resource_that_the_gang_does_not_ask_for_refuses_nothing() -> None:
    """The pool holds more CPUs than its limit, which was lowered since: a gang without CPUs may start."""
    found = bounds("node n gpus=8 cpus=8\npool x limit.cpus=1 limit.gpus=4\nrunning a cpus=2 gpus=1 on=n pool=x")
    assert limit(found.over(gang(), gpus(1))) is None
    assert limit(found.over(gang(), gpus(1, cpus=1))) == ("x", 2, 1)


@pytest.mark.parametrize(
    ("freed", "over"),
    [({("x", True): gpus(1)}, None), ({("y", True): gpus(1)}, None), ({("default", True): gpus(9)}, ("team", 3, 6))],
)
def test_holdings_that_are_given_up_count_within_the_bounds_of_their_own_pool(
    freed: dict[poolbounds.Key, amounts.Amount], over: tuple[object, ...] | None
) -> None:
    assert limit(bounds(TEAM).over(gang("y"), gpus(4), freed)) == over


def test_a_refusal_counts_the_rest_of_the_holdings_that_are_given_up() -> None:
    assert limit(bounds(TEAM).over(gang("y"), gpus(6), {("x", True): gpus(1)})) == ("team", 2, 6)


def test_all_stopping_gangs_count_now_and_none_of_them_later() -> None:
    """A gang is admitted once the others are told to stop, and launched once they are gone."""
    found = bounds("node n gpus=8\npool x limit.gpus=4\nrunning a gpus=2 on=n pool=x stopping")
    assert limit(found.over(gang(), gpus(4))) is None
    assert found.fits_now(gang(), gpus(2))
    assert not found.fits_now(gang(), gpus(3))
    assert found.fits_now(gang("default"), gpus(8))


def test_an_entitlement_does_not_hold_back_a_launch() -> None:
    assert bounds(ENTITLED).over(gang("x"), gpus(3)) is not None
    assert bounds(ENTITLED).fits_now(gang("x"), gpus(3))


def test_gains_and_losses_of_a_plan_are_counted() -> None:
    """A promise counts as due alone, and so does a stop: the holdings are there until the processes are gone."""
    found, one = bounds("node n gpus=8\npool x limit.gpus=4"), gang()
    found.add(one, gpus(2), now=True)
    assert (found.changes, found.given_up) == (1, 0)
    assert limit(found.over(one, gpus(3))) == ("x", 2, 4)
    assert not found.fits_now(one, gpus(3))
    found.add(one, gpus(2))
    assert limit(found.over(one, gpus(1))) == ("x", 4, 4)
    assert found.fits_now(one, gpus(2))
    found.add(one, gpus(2), -1)
    assert (found.changes, found.given_up) == (3, 1)
    assert limit(found.over(one, gpus(2))) is None
    assert not found.fits_now(one, gpus(3)), "its processes are still there"


def test_one_pool_without_bounds_needs_no_sums() -> None:
    found = bounds("node n gpus=8\nrunning a gpus=2 on=n")
    assert found.single
    assert found.bounds(gang("default")) == ()
    assert not bounds("node n gpus=8\npool default limit.gpus=4").single
    assert not bounds("node n gpus=8\npool default reserve.gpus=4").single
    assert not bounds("node n gpus=8\npool other").single


# Reservations

RESERVED = """
node n gpus=8 cpus=8
pool x reserve.gpus=2
pool y
running fixed gpus=1 on=n pool=x preemptible=no
running other gpus=1 on=n pool=x
"""


@pytest.mark.parametrize(
    ("pool", "asked", "over"),
    [
        ("x", gpus(1, cpus=8), None),  # no pool reserves CPUs
        ("x", gpus(2), ("x", "gpus", 1, 2, RESERVATION)),
        ("y", gpus(1), ("y", "gpus", 0, 0, RESERVATION)),
        ("y", gpus(0, cpus=1), ("y", "cpus", 0, 0, RESERVATION)),
    ],
)
def test_gangs_that_must_not_be_preempted_are_within_the_reservation(
    pool: str, asked: amounts.Amount, over: tuple[object, ...] | None
) -> None:
    """Only such gangs count against it."""
    found = told(bounds(RESERVED).over(gang(pool, preemptible=False), asked))
    assert (found if found and found[4] is RESERVATION else None) == over
    free = bounds(RESERVED).over(gang(pool), asked)
    assert free is None or free.kind is ENTITLEMENT


@pytest.mark.parametrize(
    ("asked", "without", "within"),
    [
        (gpus(1), gpus(0), True),
        (gpus(2), gpus(0), False),
        (gpus(2), gpus(1), True),
        (gpus(1, cpus=4), gpus(0), True),
        (gpus(1, cpus=9), gpus(0), False),
        (gpus(0, cpus=1), gpus(0), True),
    ],
)
def test_a_reservation_is_a_claim_that_others_must_meet(
    asked: amounts.Amount, without: amounts.Amount, within: bool
) -> None:
    """The pool holds 3 of its 4 reserved devices. `without` is what it gives up for the gang itself."""
    found = bounds(ENTITLED)
    assert found.within_reservation(gang("x"), asked, without) is within


def test_a_pool_without_a_reservation_has_no_such_claim() -> None:
    found = bounds(f"{ENTITLED}\npool z")
    for pool in ("z", "nowhere"):
        assert found.bounds(gang(pool))
        assert not found.within_reservation(gang(pool), gpus(0, cpus=1), gpus(0))
    found = bounds(f"{ENTITLED}\npool z reserve.cpus=1")
    assert found.bounds(gang("z"))
    assert found.within_reservation(gang("z"), (0, 1000, 0), gpus(0))
    assert not found.within_reservation(gang("z"), (1, 0, 0), gpus(0)), "it has not reserved a thousandth of a device"


def test_nothing_is_reserved_for_a_pool_that_was_removed() -> None:
    over = bounds(RESERVED).over(gang("nowhere", preemptible=False), gpus(1))
    assert told(over) == ("nowhere", "gpus", 0, 0, RESERVATION)


# Entitlements

ENTITLED = """
node n gpus=8 cpus=8
pool x reserve.gpus=4
pool y reserve.gpus=4
pool default share.gpus=0
running a gpus=3 on=n pool=x
running b gpus=2 on=n pool=y
running c gpus=2 on=n pool=y
job more gpus=4 pool=x
"""
"""Each pool is entitled to 4 devices: x holds 3 of them, y 4."""

BORROWED = ENTITLED.replace("gpus=2 on=n", "gpus=1 on=n").replace("a gpus=3", "a gpus=5")
"""The pool x holds 5 devices, and y wants 4 of which it holds 2."""
BORROWED = f"{BORROWED}job its tasks=2 gpus=1 pool=y\n"


def test_an_entitlement_may_be_exceeded_by_borrowing() -> None:
    found = bounds(ENTITLED)
    assert found.over(gang(), gpus(1)) is None
    over = found.over(gang(), gpus(2))
    assert told(over) == ("x", "gpus", 3, 4, ENTITLEMENT)
    assert over is not None
    assert over.lends
    assert not over.beyond, "the pool is within its entitlement still"
    assert found.over_borrowing(gang(), gpus(2)) is None
    over = bounds(BORROWED).over(gang(), gpus(1))
    assert over is not None
    assert over.beyond


def test_exactly_the_entitlement_is_no_loan() -> None:
    found = bounds(ENTITLED)
    found.add(gang(), gpus(1))
    over = found.over(gang(), gpus(1))
    assert over is not None
    assert not over.beyond


@pytest.mark.parametrize(
    ("asked", "lent", "is_over"), [(2, True, False), (3, True, True), (2, False, True), (1, False, False)]
)
def test_a_pool_beyond_its_entitlement_may_stay_as_far_beyond_it(asked: int, lent: bool, is_over: bool) -> None:
    """It holds 5 of 4, and gives up 2: with `lent` the gang may take these 2."""
    found = bounds(BORROWED)
    assert (found.over(gang(), gpus(asked), {("x", True): gpus(2)}, lent=lent) is not None) is is_over


def test_the_excess_is_the_holdings_of_a_pool_beyond_its_entitlement() -> None:
    found = bounds(BORROWED)
    assert (found.excess("x", 0), found.excess("y", 0), found.excess("nowhere", 0)) == (1000, -2000, 0)
    assert found.borrows("x", gpus(1))
    assert not found.borrows("x", gpus(0, cpus=1)), "it has borrowed no CPU"
    assert not found.borrows("y", gpus(1))
    assert not bounds(ENTITLED).borrows("y", gpus(1)), "it holds exactly its entitlement"


def test_the_part_of_its_entitlement_that_a_pool_holds() -> None:
    found = bounds(ENTITLED)
    assert (found.ratio("x"), found.ratio("y"), found.ratio("default")) == pytest.approx((0.75, 1, 0))
    assert found.ratio("nowhere") == 0
    assert found.keeps("x", gpus(1), gpus(1)) == pytest.approx(0.5)
    assert found.keeps("x", gpus(1), gpus(0, cpus=1)) == 0
    assert found.keeps("nowhere", gpus(0), gpus(1)) == float("inf")
    assert found.keeps("x", gpus(0), gpus(0)) == float("inf")


def test_a_pool_that_is_entitled_to_nothing_is_the_last_to_get_anything() -> None:
    found = bounds(f"{ENTITLED}\nrunning d gpus=1 on=n")
    assert found.ratio("default") == float("inf")
    assert found.keeps("default", gpus(0), gpus(1)) == float("inf")


def test_a_pool_stands_where_it_holds_most() -> None:
    """It holds 3 of 4 devices, and 6 of 8 CPUs beside 2 of another pool: more than its part of the devices."""
    found = bounds(ENTITLED.replace("a gpus=3", "a gpus=3 cpus=8"))
    assert found.ratio("x") == pytest.approx(1)


def test_the_rest_belongs_to_the_leaves_that_are_entitled_to_it() -> None:
    found = bounds(
        """
        node n gpus=12
        pool team reserve.gpus=8
        pool x parent=team reserve.gpus=2
        pool y parent=team reserve.gpus=6
        pool z reserve.gpus=4
        pool default share.gpus=0
        job a gpus=9 pool=x
        job b gpus=9 pool=y
        job c gpus=9 pool=z
        """
    )
    assert found.others("x", "gpus") == ["y", "z"]
    assert found.others("z", "gpus") == ["y", "x"]
    assert found.others("nowhere", "gpus") == ["y", "z", "x"]


# Static reservations

STATIC_POOL = """
node n gpus=8
pool own reserve.gpus=4 static=gpus
pool x
pool default share.gpus=0
running a gpus=2 on=n pool=x
running b gpus=1 on=n pool=own
"""


@pytest.mark.parametrize(
    ("asked", "freed", "over"),
    [
        (2, {}, None),
        (3, {}, ("x", "gpus", 3, 5, STATIC)),
        (3, {("x", True): gpus(1)}, None),
        (4, {("x", True): gpus(1)}, ("x", "gpus", 2, 5, STATIC)),
        (3, {("own", True): gpus(1)}, ("x", "gpus", 2, 4, STATIC)),
    ],
)
def test_a_static_reservation_is_not_lent(
    asked: int, freed: dict[poolbounds.Key, amounts.Amount], over: tuple[object, ...] | None
) -> None:
    """8 devices less the 3 idle ones of the static reservation are 5, of which 3 are held."""
    found = bounds(STATIC_POOL)
    assert told(found.over_borrowing(gang(), gpus(asked), freed)) == over
    assert told(found.over_growing(gang(), gpus(asked), freed)) == over


def test_a_loan_that_is_passed_on_within_a_pool_leaves_static_reservations_alone() -> None:
    """The pool may keep what it holds beyond its entitlement, but not take the idle part of a static reservation."""
    found = bounds(STATIC_POOL.replace("a gpus=2", "a gpus=6"))
    assert told(found.over(gang(), gpus(3), {("x", True): gpus(3)}, lent=True)) == ("x", "gpus", 4, 5, STATIC)
    assert found.over(gang(), gpus(1), {("x", True): gpus(3)}, lent=True) is None


def test_holdings_on_a_lost_node_take_nothing_of_the_others() -> None:
    """The capacity is that of the ready nodes, so that holdings elsewhere do not count against it."""
    lines = f"{STATIC_POOL}node lost gpus=4 down\nrunning there gpus=3 on=lost pool=x"
    assert bounds(lines).over_borrowing(gang(), gpus(2)) is None
    assert told(bounds(lines).over_borrowing(gang(), gpus(3))) == ("x", "gpus", 3, 5, STATIC)
    assert bounds(f"{lines} stopping").over_borrowing(gang(), gpus(2)) is None


def test_holdings_on_a_removed_node_take_nothing_of_the_others() -> None:
    of = drafted.cluster(f"{STATIC_POOL}node removed gpus=4\nrunning there gpus=3 on=removed pool=x")
    del of.nodes["removed"]
    assert drafted.draft(of).bounds.over_borrowing(gang(), gpus(2)) is None
    assert told(drafted.draft(of).bounds.over_borrowing(gang(), gpus(3))) == ("x", "gpus", 3, 5, STATIC)


# Shares that are kept for a gang that came first


def kept(asked: int, at: float | None = NOW + 100, most: int = 4) -> tuple[poolbounds.PoolBounds, plans.Gang]:
    """Keep `asked` devices of a limit for a gang, at a time at which the two that are held now are free."""
    found = bounds(f"node n gpus=16\npool x limit.gpus={most}\nrunning a gpus=2 on=n pool=x")
    first = gang(job="first")
    found.keep_for(first, gpus(asked), {("x", True): gpus(2)}, at, found.bounds(first)[0])
    return found, first


@pytest.mark.parametrize(
    ("asked", "later", "waits"), [(4, 1, True), (3, 1, False), (3, 2, True), (2, 2, False), (9, 1, True)]
)
def test_a_later_gang_gets_only_the_rest_of_a_bound(asked: int, later: int, waits: bool) -> None:
    found, first = kept(asked)
    over = found.over(gang(), gpus(later))
    if waits:
        assert over is not None
        assert (over.first, over.exceeded, over.lends, over.forbids) == (first, False, False, True)
    assert (over is not None and over.first is not None) is waits
    asking = found.over(first, gpus(1))
    assert asking is None or asking.first is None, "it is kept for the gang itself"


def test_a_bound_that_is_exceeded_is_told_with_the_gang_that_came_first() -> None:
    found, first = kept(4)
    assert found.bounds(first)[0].kept_shares[0].spare == [0, None, None]
    over = found.over(gang(), gpus(3))
    assert over is not None
    assert (over.first, over.exceeded) == (first, True)


@pytest.mark.parametrize(
    ("at", "at_most_s", "passes"),
    [(NOW + 100, 100, True), (NOW + 100, 101, False), (NOW + 100, None, False), (None, 1, False)],
)
def test_a_gang_that_ends_before_takes_nothing_away(at: float | None, at_most_s: float | None, passes: bool) -> None:
    found, _ = kept(4, at)
    one = gang(at_most_s=at_most_s)
    over = found.over(one, gpus(1))
    assert (over is None or over.first is None) is passes
    found, _ = kept(3, at)
    found.add(one, gpus(1))
    over = found.over(gang(job="third"), gpus(1))
    assert (over is None or over.first is None) is passes, "it takes nothing of the rest either"


def test_the_rest_is_given_once() -> None:
    found, first = kept(3)
    found.add(first, gpus(3))
    found.add(first, gpus(3), -1)
    found.add(gang(), gpus(1), -1)
    found.add(gang(), gpus(1))
    over = found.over(gang(job="third"), gpus(1))
    assert over is not None
    assert over.first is first


def test_each_bound_keeps_its_share_unless_one_is_named() -> None:
    lines = "node n gpus=16\npool team limit.gpus=6\npool x parent=team limit.gpus=4\npool y parent=team"
    first, beside = gang(job="first"), gang("y")
    found = bounds(lines)
    of_x, of_team, *_ = found.bounds(first)
    found.keep_for(first, gpus(4), {}, None, of_x)
    assert (len(of_x.kept_shares), len(of_team.kept_shares)) == (1, 0)
    found = bounds(lines)
    found.keep_for(first, gpus(4), {}, None)
    over = found.over(beside, gpus(3))
    assert over is not None
    assert (over.pool, over.first) == ("team", first)
    assert found.bounds(first)[1].kept_shares[0].spare == [2000, None, None], "nothing is kept of an unbound resource"
    found.keep_for(first, (0, 1000, 0), {}, None, found.bounds(first)[1])
    assert len(found.bounds(first)[1].kept_shares) == 1, "the limit of the team bounds no CPUs"


def test_a_bound_is_kept_until_the_last_gang_takes_its_share() -> None:
    found, first = kept(4, NOW + 100)
    bound = found.bounds(first)[0]
    found.keep_for(gang(job="second"), gpus(1), {}, NOW + 300, bound)
    found.keep_for(gang(job="third"), gpus(1), {}, NOW + 200, bound)
    found.keep_for(gang(job="fourth"), gpus(1), {}, None, bound)
    assert found.bound(first, bound.over(0, 0, None, exceeded=True)) is bound
    assert found.kept_until(first) == NOW + 300
    found, first = kept(4, None)
    assert found.kept_until(first) is None


@pytest.mark.parametrize(
    ("pool", "asked", "could"),
    [
        ("x", gpus(4), True),
        ("x", gpus(5), False),
        ("x", gpus(1, cpus=4), True),
        ("x", gpus(1, cpus=5), False),
        ("team", gpus(7), False),
        ("default", gpus(9), False),  # the default pool is entitled to 8
    ],
)
def test_whether_the_bounds_would_ever_let_a_gang_in(pool: str, asked: amounts.Amount, could: bool) -> None:
    """Whatever the pools hold now: their bounds alone count. The amount may be all of a bound."""
    found = bounds(
        """
        node n gpus=18 cpus=18
        pool team limit.gpus=6 reserve.gpus=6
        pool x parent=team limit.gpus=4 limit.cpus=4 reserve.gpus=4
        pool default reserve.gpus=8 limit.gpus=8
        running a gpus=4 on=n pool=x
        """
    )
    assert found.could_fit(gang(pool), asked) is could


def test_the_amount_that_is_missing_within_a_bound() -> None:
    found = bounds(TEAM)
    of_x, of_team, _ = found.bounds(gang("x"))
    assert found.missing(of_x, gpus(3, cpus=5)) == (1000, 0, 0)
    assert found.missing(of_team, gpus(2)) == (-1000, 0, 0)
    assert found.missing(of_team, gpus(0, cpus=5)) == (0, 0, 0)
    found.bounds(gang("default"))
    assert found.keys(of_team) == {("x", True), ("y", True)}
    assert found.keys(of_x) == {("x", True)}
