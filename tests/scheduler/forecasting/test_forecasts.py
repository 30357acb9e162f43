"""Start times of waiting gangs, as the scheduler itself would start them, and the gangs that give way."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st
from tests import examples
from tests.scheduler.explaining import test_reasons as cases

from oarlock.scheduler import planning
from oarlock.scheduler.forecasting import forecasts
from oarlock.spec import holdings, plans, refusals
from oarlock.spec.cluster import nodes, pools

NOW = 1000.0
FIFO = plans.Rules(policy="fifo")
gang, node = cases.gang, cases.node


def still() -> float:
    """A budget of which nothing is ever spent."""
    return 0.0


def running(name: str, on: str, gpus: int, end: float | None = None, latest: float | None = None) -> plans.Running:
    found = cases.running(name, on, gpus)
    return msgspec.structs.replace(found, started_at=NOW - 600, expected_end=end, latest_end=latest)


def snapshot(
    *of: nodes.Node,
    run: tuple[plans.Running, ...] = (),
    wait: tuple[plans.Gang, ...] = (),
    rules: plans.Rules = FIFO,
    tree: tuple[pools.Pool, ...] = (),
) -> plans.Snapshot:
    return plans.Snapshot(nodes=of, running=run, waiting=wait, rules=rules, pools=tree)


def asked(of: plans.Snapshot, one: plans.Gang, spent: Callable[[], float] = still) -> plans.Forecast:
    return forecasts.forecast(of, one, NOW, spent)


def test_now_says_where_and_for_how_much() -> None:
    cheap = msgspec.structs.replace(node("a"), price_per_h=8.0)
    found = asked(snapshot(cheap, run=(running("r", "a", 1),)), gang(tasks=2, gpus=1))
    assert (found.when, found.start, found.latest, found.position) == (plans.When.NOW, NOW, NOW, 0)
    assert found.message == "It starts on a."
    assert [claim.devices for claim in found.placement] == [(1,), (2,)]
    assert found.price_per_h == 4.0


def test_later_is_a_range_from_the_expected_ends_to_the_time_outs() -> None:
    of = snapshot(node("a"), run=(running("r", "a", 4, end=NOW + 720, latest=NOW + 2400),))
    found = asked(of, gang(gpus=4))
    assert (found.when, found.start, found.latest) == (plans.When.LATER, NOW + 720, NOW + 2400)
    assert (found.expected, found.starts) == ("It should start in 12 to 40 min.", "in 12 to 40 min")
    assert (found.position, found.waiting) == (1, 1)
    assert found.refusal is not None
    assert found.refusal.code is refusals.Code.NO_CAPACITY


def test_without_a_time_out_there_is_no_latest() -> None:
    found = asked(snapshot(node("a"), run=(running("r", "a", 4, end=NOW + 720),)), gang(gpus=4))
    assert (found.start, found.latest) == (NOW + 720, None)
    assert (found.expected, found.starts) == ("It should start in about 12 min.", "in about 12 min")


def test_a_job_with_only_a_time_out_may_end_at_any_moment_before() -> None:
    of = snapshot(node("a"), run=(running("r", "a", 4, end=NOW + 3600, latest=NOW + 3640),))
    found = forecasts.forecast(of, gang(gpus=4), NOW, still, bounded={"r"})
    assert (found.start, found.latest) == (None, NOW + 3640)
    assert (found.expected, found.starts) == ("It should start within 61 min.", "within 61 min")


def test_an_unknown_end_is_called_unknown() -> None:
    run = (running("endless", "a", 4), running("other", "b", 4, end=NOW + 60))
    found = asked(snapshot(node("a"), node("b"), run=run), gang(tasks=2, gpus=4))
    assert (found.start, found.latest) == (None, None)
    assert (found.expected, found.starts) == (
        "The start time is unknown: nothing tells when endless will end.",
        "unknown: nothing tells when endless will end",
    )


def test_beyond_a_day_nothing_is_promised() -> None:
    found = asked(snapshot(node("a"), run=(running("r", "a", 4, end=NOW + 90_000),)), gang(gpus=4))
    assert found.start is None
    assert (found.expected, found.starts) == ("It should start later than in 24 h.", "later than in 24 h")


def test_never_is_told_before_anything_is_run_forward() -> None:
    found = asked(snapshot(node("a")), gang(gpus=5), spent=lambda: pytest.fail("no run is needed"))
    assert found.when is plans.When.NEVER
    assert found.refusal is not None
    assert found.refusal.code is refusals.Code.NEVER_FITS


def test_the_budget_ends_a_run_and_that_is_said() -> None:
    run = tuple(running(f"r{number}", f"n{number}", 4, end=NOW + 1000 * (number + 1)) for number in range(8))
    of = snapshot(*(node(f"n{number}") for number in range(8)), run=run)
    ticks = iter(range(1000))
    found = asked(of, gang(tasks=8, gpus=4), spent=lambda: next(ticks) / 50)
    assert found.start is None
    assert found.expected == "The start time was not computed: that takes more than 250 ms."
    assert asked(of, gang(tasks=8, gpus=4)).start == NOW + 8000, "with time enough it is found"


def test_one_run_answers_for_all_that_wait() -> None:
    """Each waits for the end of the one before; the forecast of one alone is the same."""
    run = (running("r", "a", 4, end=NOW + 600, latest=NOW + 1200),)
    wait = tuple(
        gang(f"w{number}", gpus=4, submitted_at=float(number), lasts_s=600.0, at_most_s=1200.0) for number in range(4)
    )
    of = snapshot(node("a"), run=run, wait=wait)
    found = forecasts.forecasts(of, NOW, still)
    assert [found[one.job].start for one in wait] == pytest.approx([NOW + 600 * (i + 1) for i in range(4)], rel=0.1)
    assert [found[one.job].latest for one in wait] == pytest.approx([NOW + 1200 * (i + 1) for i in range(4)], rel=0.1)
    assert [found[one.job].position for one in wait] == [1, 2, 3, 4]
    assert {verdict.waiting for verdict in found.values()} == {4}
    for one in wait:
        assert asked(of, one).start == found[one.job].start


def test_the_starts_after_a_gang_of_unknown_length_are_unknown() -> None:
    run = (running("r", "a", 4, end=NOW + 600),)
    wait = (gang("first", gpus=4), gang("second", gpus=4, submitted_at=1.0))
    found = forecasts.forecasts(snapshot(node("a"), run=run, wait=wait), NOW, still)
    assert found["first"].start == NOW + 600
    assert found["second"].start is None
    assert "first will end" in found["second"].expected


def test_its_place_in_the_queue_is_the_policy_s() -> None:
    run = (running("r", "a", 4, end=NOW + 600),)
    wait = (gang("early", gpus=4), gang("urgent", gpus=4, priority=90, submitted_at=1.0))
    of = snapshot(node("a"), run=run, wait=wait, rules=plans.Rules(policy="priority", min_runtime_s=1e9))
    found = forecasts.forecasts(of, NOW, still)
    assert (found["urgent"].position, found["early"].position) == (1, 2)
    assert found["urgent"].start == NOW + 600


def test_a_preempted_gang_waits_again_and_the_preemption_is_forecast() -> None:
    wait = (gang("urgent", gpus=4, priority=90, lasts_s=300.0),)
    run = (running("low", "a", 4, end=NOW + 5000),)
    of = snapshot(node("a"), run=run, wait=wait, rules=plans.Rules(policy="priority"))
    found = asked(of, wait[0])
    assert found.refusal is not None
    assert found.refusal.code is refusals.Code.STOPPING
    assert found.start == NOW + forecasts.STOPPING_S
    later = forecasts.forecasts(of, NOW, still)
    assert later["urgent"].start == found.start


def test_a_preempted_gang_comes_back_before_less_important_ones() -> None:
    """`urgent` takes the place of `low` for five minutes; `last` has its turn when `low` has ended after all."""
    wait = (gang("urgent", gpus=4, priority=90, lasts_s=300.0), gang("last", gpus=4, priority=10, submitted_at=1.0))
    run = (running("low", "a", 4, end=NOW + 5000),)
    found = forecasts.forecasts(
        snapshot(node("a"), run=run, wait=wait, rules=plans.Rules(policy="priority")), NOW, still
    )
    assert found["urgent"].start == NOW + forecasts.STOPPING_S
    assert found["last"].start == pytest.approx(NOW + 5000 + 300 + forecasts.STOPPING_S, rel=0.1)


def test_a_back_off_is_waited_for() -> None:
    found = asked(snapshot(node("a")), gang(gpus=1, not_before=NOW + 20))
    assert found.when is plans.When.LATER
    assert found.start == NOW + 20


def test_a_gang_behind_too_many_others_gets_no_start_time() -> None:
    run = (running("r", "a", 4, end=NOW + 600),)
    wait = tuple(gang(f"w{number:04}", gpus=4, submitted_at=float(number)) for number in range(forecasts.DEPTH + 2))
    found = forecasts.forecasts(snapshot(node("a"), run=run, wait=wait), NOW, still)
    assert found["w0000"].start == NOW + 600
    assert (
        found[wait[-1].job].expected
        == f"The start time was not computed: more than {forecasts.DEPTH} jobs are ahead of it."
    )
    assert found[wait[-1].job].position == forecasts.DEPTH + 2


def test_in_a_cluster_too_large_for_one_plan_the_last_refusal_is_repeated() -> None:
    def never_asked() -> float:
        raise AssertionError("something was run forward")

    told = refusals.Refusal(code=refusals.Code.NO_CAPACITY, message="as it was told", ahead=6)
    count = forecasts.MOST_LOOKED_AT
    waits = tuple(msgspec.structs.replace(gang(gpus=1), job=f"j{number}", refusal=told) for number in range(count))
    fresh = msgspec.structs.replace(gang(gpus=1), job="fresh")
    of = snapshot(node("a"), wait=(*waits, fresh))
    found = forecasts.forecasts(of, NOW, never_asked)
    assert len(found) == count + 1
    assert (found["j5"].message, found["j5"].expected) == ("as it was told", forecasts.UNCOMPUTED)
    assert (found["j5"].when, found["j5"].position) == (plans.When.LATER, 7)
    assert (found["fresh"].when, found["fresh"].expected) == (plans.When.LATER, forecasts.UNCOMPUTED)
    alone = forecasts.forecast(of, msgspec.structs.replace(fresh, submitted_at=9.0), NOW, never_asked)
    assert alone.when is plans.When.LATER


def test_moments_close_together_are_one() -> None:
    """A hundred ends within a minute, an hour from now, are not a hundred plans."""
    run = tuple(running(f"r{i}", f"n{i}", 4, end=NOW + 3600 + i / 2) for i in range(100))
    of = snapshot(*(node(f"n{i}") for i in range(100)), run=run)
    plans_made = 0

    def counting() -> float:
        nonlocal plans_made
        plans_made += 1
        return 0.0

    found = asked(of, gang(tasks=100, gpus=4), spent=counting)
    assert found.start == NOW + 3600 + 99 / 2
    assert plans_made < 40


@st.composite
def queues(draw: st.DrawFn) -> plans.Snapshot:
    """A few nodes, all ends known; so everything that can run will."""
    of = tuple(node(f"n{number}", gpus=draw(st.sampled_from([2, 4]))) for number in range(draw(st.integers(1, 3))))
    run = tuple(
        running(f"r{number}", one.name, draw(st.integers(1, one.capacity.gpus)), end=NOW + draw(st.integers(1, 5000)))
        for number, one in enumerate(of)
        if draw(st.booleans())
    )
    wait = tuple(
        gang(
            f"w{number}",
            tasks=draw(st.integers(1, 3)),
            gpus=draw(st.integers(0, 2)),
            submitted_at=float(number),
            lasts_s=float(draw(st.integers(1, 3000))),
            priority=draw(st.sampled_from([50, 60])),
        )
        for number in range(draw(st.integers(1, 6)))
    )
    policy = draw(st.sampled_from(["fifo", "priority", "fair"]))
    return snapshot(*of, run=run, wait=wait, rules=plans.Rules(policy=policy))


@hypothesis.given(queues())
@hypothesis.settings(max_examples=examples.at_most(60), deadline=None)
def test_where_all_ends_are_known_every_start_is_found_and_now_means_now(of: plans.Snapshot) -> None:
    found = forecasts.forecasts(of, NOW, still)
    launched = {launch.job for launch in planning.plan(of, NOW).launches}
    assert found.keys() == {one.job for one in of.waiting}
    for job, verdict in found.items():
        assert (verdict.when is plans.When.NOW) == (job in launched)
        if verdict.when is plans.When.LATER:
            assert verdict.start is not None, verdict.expected
            assert NOW < verdict.start <= NOW + forecasts.HORIZON_S


@hypothesis.given(queues(), st.randoms())
@hypothesis.settings(max_examples=examples.at_most(30), deadline=None)
def test_the_order_of_the_input_changes_nothing(of: plans.Snapshot, random: st.DataObject) -> None:
    shuffled = [list(of.nodes), list(of.running), list(of.waiting)]
    for one in shuffled:
        random.shuffle(one)  # type: ignore[attr-defined]
    other = msgspec.structs.replace(
        of, nodes=tuple(shuffled[0]), running=tuple(shuffled[1]), waiting=tuple(shuffled[2])
    )
    assert forecasts.forecasts(of, NOW, still) == forecasts.forecasts(other, NOW, still)


PRIORITY = plans.Rules(policy="priority", min_runtime_s=120.0, round_s=60.0)


@pytest.mark.parametrize(
    ("ran_s", "when"), [(600.0, "in the next round, within 60 s"), (20.0, "in about 2 min")], ids=["old", "young"]
)
def test_a_gang_is_told_which_gangs_give_way_to_it_and_when(ran_s: float, when: str) -> None:
    held = msgspec.structs.replace(running("big", "a", 4), started_at=NOW - ran_s)
    of = snapshot(node("a"), run=(held,), rules=PRIORITY)
    found = asked(of, gang("urgent", gpus=4, priority=900))
    assert found.makes_way == f"big is expected to be preempted for it {when}."
    assert [(one.job, one.shrinks) for one in found.stops] == [("big", False)]
    assert "being stopped" not in found.message, "nothing is stopped yet"
    assert found.start is not None
    assert asked(of, gang("modest", gpus=4)).makes_way == ""


def test_an_elastic_gang_that_shrinks_is_told_apart() -> None:
    ask = plans.Ask(role="worker", count=4, min=1, max=4, amount=holdings.Resources(gpus=1))
    elastic = msgspec.structs.replace(gang("wide", gpus=1), asks=(ask,))
    claims = tuple(
        holdings.Holding(
            job="wide", attempt=1, role="worker", index=place, node="a", amount=ask.amount, devices=(place,)
        )
        for place in range(4)
    )
    held = plans.Running(gang=elastic, holdings=claims, started_at=NOW - 600)
    found = asked(snapshot(node("a"), run=(held,), rules=PRIORITY), gang("urgent", gpus=2, priority=900))
    assert found.makes_way == "wide is expected to shrink for it in the next round, within 60 s."
    assert [(one.job, one.shrinks) for one in found.stops] == [("wide", True)]


def test_a_gang_that_is_being_stopped_is_said_to_be() -> None:
    held = msgspec.structs.replace(running("big", "a", 4), stopping=True, returns=True)
    found = asked(snapshot(node("a"), run=(held,), rules=PRIORITY), gang("urgent", gpus=4, priority=900))
    assert found.message == "Its place is being cleared: big is being stopped."
    assert found.makes_way == ""
