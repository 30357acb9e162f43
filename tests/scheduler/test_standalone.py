"""The scheduler that keeps its own books: the same plans as a server makes, and no bad input."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest
from tests import marks
from tests.scheduler import lives, world
from tests.simulator import smallcases

from oarlock.scheduler import planning, standalone
from oarlock.scheduler.reuse import memos
from oarlock.scheduler.speed import rates
from oarlock.simulator.models import jobmodels
from oarlock.spec import curves, errors, jobfile, plans, roles
from oarlock.spec.cluster import nodes

BOUNDS = jobfile.Batch(size=100, max=1600, local_max=100)
POLICIES = ("fifo", "priority", "fair", "las", "gandiva", "goodput", "optimus")


def model(seen: int) -> curves.Curve:
    """Computing 100 examples takes a second, and an exchange hardly anything."""
    return rates.of_params((0.0, 0.01, 0.02, 0.0, 0.01, 0.0, 1.0), (1.0, 10.0), initial=100, seen=seen)


def cluster(count: int = 2, gpus: int = 4, **known: Any) -> standalone.Scheduler:
    rules = plans.Rules(policy="goodput", **known)
    return standalone.Scheduler([standalone.node(f"n{number}", gpus) for number in range(count)], rules)


# The same plans


class Mirror:
    """Asks for each plan twice: as the caller does, from its snapshot, and through a `Scheduler` that only hears what
    happened. Everything that the scheduler decides itself (places, starts, service, refusals) has to come out alike.
    """

    def __init__(self, *, at_once: bool) -> None:
        self.at_once = at_once
        self.scheduler: standalone.Scheduler | None = None
        self.expected: list[plans.Plan] = []  # of the tick at this instant, those that are still to come
        self.seen = dict.fromkeys(("launches", "preemptions", "resizes", "moves", "refusals", "batches"), 0)

    def plan(self, snapshot: plans.Snapshot, now: float, memo: Any = None) -> plans.Plan:
        made = planning.plan(snapshot, now, memo)
        if self.expected:
            assert not snapshot.reallocate
        else:
            self.follow(snapshot, now)
            self.compare(snapshot)
            assert self.scheduler is not None
            self.expected = list(self.scheduler.tick(now, reallocate=snapshot.reallocate).plans)
        assert self.expected.pop(0) == made
        for part in self.seen:
            self.seen[part] += len(getattr(made, part))
        return made

    def follow(self, snapshot: plans.Snapshot, now: float) -> None:
        """Tell it of the jobs that came, ended or are gone, and of new measurements."""
        if self.scheduler is None:
            self.scheduler = standalone.Scheduler(
                snapshot.nodes, snapshot.rules, pools=snapshot.pools, at_once=self.at_once
            )
        waiting = {one.job: one for one in snapshot.waiting}
        running = {one.job: one for one in snapshot.running}
        for job in [*self.scheduler.running, *self.scheduler.waiting]:
            if job not in waiting and job not in running:
                self.scheduler.finish(job, now)
            elif job in waiting and job in self.scheduler.running:
                self.scheduler.stopped(job, now)
        for gang in waiting.values():
            if gang.job not in self.scheduler.waiting:
                self.scheduler.submit(gang, now)
            self.scheduler.measure(gang.job, now, curve=gang.curve, lasts_s=gang.lasts_s, restart_s=gang.restart_s)
        for one in running.values():
            self.scheduler.measure(
                one.job,
                now,
                curve=one.gang.curve,
                lasts_s=one.gang.lasts_s,
                checkpoint_at=one.checkpoint_at,
                expected_end=one.expected_end,
                began_at=one.began_at,
                restart_s=one.gang.restart_s,
            )

    def compare(self, snapshot: plans.Snapshot) -> None:
        assert self.scheduler is not None
        own = self.scheduler.snapshot()
        assert _by_job(map(_bare, own.waiting)) == _by_job(map(_bare, snapshot.waiting))
        bare = {"speed": None, "starting": False, "latest_end": None}  # that no one told it
        assert _by_job(own.running) == _by_job(msgspec.structs.replace(one, **bare) for one in snapshot.running)


def _bare(gang: plans.Gang) -> tuple[plans.Gang, str]:
    """Keep only the code of its refusal: a server writes numbers that change only now and then."""
    code = "" if gang.refusal is None else gang.refusal.code
    return msgspec.structs.replace(gang, refusal=None), code


def _by_job(ones: Any) -> dict[str, Any]:
    return {one[0].job if isinstance(one, tuple) else one.job: one for one in ones}


class Told(lives.Life):
    """A life in which what was known once is not forgotten."""

    def _progressed(self, one: plans.Running) -> plans.Running:
        seen = super()._progressed(one)
        return world.replace(
            seen,
            checkpoint_at=seen.checkpoint_at if one.checkpoint_at is None else self.now,
            expected_end=one.expected_end if seen.expected_end is None else seen.expected_end,
        )


@pytest.mark.parametrize("lives_count", marks.long_except([5], [5, 16]))
def test_a_random_life(lives_count: int) -> None:
    """Stops take time, as on a server."""
    seen: dict[str, int] = {}
    for seed in range(lives_count):
        mirror = Mirror(at_once=False)
        kind = lives.Kind(policies=POLICIES, faults=False, pairs=seed % 2 == 0)
        life = Told(random.Random(seed), kind, mirror.plan)
        for _ in range(60):
            life.step()
        seen = {part: count + seen.get(part, 0) for part, count in mirror.seen.items()}
    assert min(count for part, count in seen.items() if part != "batches") > 1, seen


def test_the_controllers_in_the_simulator() -> None:
    """Stops take no time: a tick is two plans of the controllers."""
    dice = random.Random(1)
    mirror = Mirror(at_once=True)
    arrivals = []
    for number in range(25):
        gpus = dice.choice([1, 1, 2])
        role = jobfile.Role(count=gpus, min=gpus, max=dice.choice([gpus, 4, 8]), gpus=1, cpus=1)
        shape = (gpus,)
        job_model = jobmodels.with_duration(_truth(), dice.uniform(200.0, 4000.0), shape, BOUNDS)
        arrivals.append(
            smallcases.job(
                f"j{number:02}",
                dice.uniform(0.0, 3000.0),
                0.0,
                job_model=job_model,
                roles={roles.RoleName.WORKER: role},
                batch=BOUNDS,
            )
        )
    rules = plans.Rules(policy="goodput", min_runtime_s=30.0)
    simulation = smallcases.prepared(
        sorted(arrivals, key=lambda one: one.at), "2x4", plan=mirror.plan, memo=memos.Memo(), rules=rules
    )
    found = asyncio.run(simulation.run()).outcome
    assert {story.phase for story in found.stories} == {"COMPLETED"}
    assert min(mirror.seen[part] for part in ("launches", "resizes", "refusals", "batches")) > 3, mirror.seen


def _truth() -> curves.Allreduce:
    found = model(1).model
    assert isinstance(found, curves.Allreduce)
    return found


def test_it_goes_on_from_a_snapshot() -> None:
    """Its state is a value that can be written down: another process makes the next plan."""
    first = cluster()
    first.submit(standalone.gang("a", 0.0, most=8), 0.0)
    first.tick(0.0)
    first.submit(standalone.gang("b", 5.0, most=8), 5.0)
    written = msgspec.json.encode(first.snapshot())
    second = standalone.Scheduler.restored(msgspec.json.decode(written, type=plans.Snapshot))
    first.measure("a", 600.0, curve=model(4), bounds=BOUNDS)
    second.measure("a", 600.0, curve=model(4), bounds=BOUNDS)
    assert second.tick(600.0) == first.tick(600.0)
    assert second.snapshot() == first.snapshot()


# Duties of a caller


def test_running_jobs_are_touched_once_a_round() -> None:
    found = cluster(round_s=60.0, min_runtime_s=0.0)
    found.submit(standalone.gang("a", 0.0, most=8), 0.0)
    found.tick(0.0)
    found.measure("a", 30.0, curve=model(8), bounds=BOUNDS)
    assert found.tick(30.0).changes == ()
    (change,) = found.tick(60.0).changes
    assert (change.what, change.allocation) == (standalone.What.RESIZE, ["n0"] * 4 + ["n1"] * 4)


def test_a_tick_returns_the_actions() -> None:
    found = cluster(count=1, min_runtime_s=0.0)
    found.submit(standalone.gang("a", 0.0, most=4), 0.0)
    assert [(one.job, one.what, len(one.holdings)) for one in found.tick(0.0).changes] == [("a", "start", 4)]
    found.submit(msgspec.structs.replace(standalone.gang("b", 600.0, least=4, most=4), priority=90), 600.0)
    tick = found.tick(600.0)
    assert [(one.job, one.what) for one in tick.changes] == [("a", "stop"), ("b", "start")]
    assert set(tick.refusals) == {"a"}
    assert found.waiting["a"].served_s == 4 * 600.0
    found.finish("b", 700.0)
    assert [one.job for one in found.tick(700.0).changes] == ["a"]
    assert found.snapshot().ended == (plans.Ended(owner="", name="b", served_s=400.0),)


def test_where_a_stop_takes_time_its_place_is_kept() -> None:
    rules = plans.Rules(policy="goodput", min_runtime_s=0.0)
    machines = [standalone.node("n0", 4)]
    found = standalone.Scheduler(machines, rules, at_once=False)
    found.submit(standalone.gang("a", 0.0, most=4), 0.0)
    found.tick(0.0)
    found.submit(standalone.gang("b", 600.0), 600.0)
    (change,) = found.tick(600.0).changes
    assert (change.job, change.what, found.running["a"].stopping) == ("a", standalone.What.RESIZE, True)
    assert found.tick(601.0).changes == (), "nothing starts on a device that is still held"
    found.stopped("a", 610.0)
    after = found.tick(610.0).changes
    assert {one.job: one.what for one in after} == {"a": "start", "b": "start"}
    assert len(found.running["a"].holdings) == len(change.holdings)


def test_a_failed_job_backs_off() -> None:
    found = cluster()
    found.submit(standalone.gang("a", 0.0), 0.0)
    found.tick(0.0)
    found.stopped("a", 10.0, not_before=100.0)
    tick = found.tick(11.0)
    assert (tick.changes, tick.refusals["a"].code) == ((), "backing_off")
    assert [one.what for one in found.tick(100.0).changes] == ["start"]


def test_a_cap_that_rises_leaves_a_gang_elastic() -> None:
    """As where no job may have more than twice its measured devices: a new one has 1, and is not rigid."""
    found = cluster()
    found.submit(standalone.gang("a", 0.0, most=8), 0.0)
    found.measure("a", 0.0, most={"worker": 1})
    (change,) = found.tick(0.0).changes
    assert (len(change.holdings), found.running["a"].gang.elastic) == (1, True)
    for at, cap in ((600.0, 2), (1200.0, 4), (1800.0, 8)):
        found.measure("a", at, curve=model(cap // 2), bounds=BOUNDS, most={"worker": cap})
        found.tick(at)
        assert len(found.running["a"].holdings) == cap
    found.measure("a", 2400.0, most={"worker": None})
    assert found.running["a"].gang.asks[0].most == 8


@pytest.mark.parametrize("policy", ["las", "goodput", "optimus"])
def test_a_cap_holds_under_every_policy(policy: str) -> None:
    found = standalone.Scheduler([standalone.node("n0", 8)], plans.Rules(policy=policy))
    ask = plans.Ask(role="worker", count=4, min=1, max=8, amount=standalone.gang("x", 0.0).asks[0].amount)
    found.submit(msgspec.structs.replace(standalone.gang("a", 0.0), asks=(ask,)), 0.0)
    found.measure("a", 0.0, most={"worker": 2}, curve=model(8), bounds=BOUNDS)
    for at in (0.0, 1000.0, 2000.0):
        found.tick(at)
        assert 1 <= len(found.running["a"].holdings) <= 2


def test_jobs_that_choose_their_batch_sizes_are_left_to_it() -> None:
    machines = [standalone.node("n0", 4)]
    rules = plans.Rules(policy="goodput")
    found = standalone.Scheduler(machines, rules, batches=False)
    found.submit(standalone.gang("a", 0.0, most=4), 0.0)
    found.measure("a", 0.0, curve=model(4), bounds=BOUNDS)
    (change,) = found.tick(0.0).changes
    assert (len(change.holdings), change.batch) == (4, None)
    found.measure("a", 60.0, batch=curves.Batch(25))
    assert found.tick(60.0).changes == ()
    assert found.running["a"].batch == curves.Batch(25)


def test_a_batch_size_is_decided_where_the_jobs_leave_it_open() -> None:
    found = cluster(count=1)
    found.submit(standalone.gang("a", 0.0, most=4), 0.0)
    found.measure("a", 0.0, curve=model(4), bounds=BOUNDS)
    (change,) = found.tick(0.0).changes
    assert change.batch is not None
    found.measure("a", 60.0, batch=curves.Batch(25, accumulate=4))
    (again,) = found.tick(60.0).changes
    assert (again.what, again.batch) == (standalone.What.BATCH, change.batch)


def test_a_node_that_is_added_is_used() -> None:
    found = cluster(count=1)
    for name in ("a", "b"):
        found.submit(standalone.gang(name, 0.0, least=4, most=4), 0.0)
    found.tick(0.0)
    found.declare([standalone.node(f"n{number}", 4) for number in range(2)], 10.0)
    assert [one.job for one in found.tick(10.0).changes] == ["b"]


# Bad input


def _asking(**ask: Any) -> plans.Gang:
    known = standalone.gang("new", 0.0)
    return msgspec.structs.replace(known, asks=(msgspec.structs.replace(known.asks[0], **ask),))


REFUSED: dict[str, tuple[Any, type[errors.OarlockError], str]] = {
    "a job twice": (lambda s: s.submit(standalone.gang("a", 0.0), 1.0), errors.NameTaken, "do not submit it again"),
    "an unknown job": (lambda s: s.finish("b", 1.0), errors.NotFound, "Submit it first"),
    "a job that waits is not gone": (lambda s: s.stopped("w", 1.0), errors.InvalidInput, "holds something"),
    "time goes back": (lambda s: s.tick(-1.0), errors.InvalidInput, "same clock"),
    "no time": (lambda s: s.tick(float("nan")), errors.InvalidInput, "same clock"),
    "nothing asked for": (
        lambda s: s.submit(msgspec.structs.replace(standalone.gang("new", 0.0), asks=()), 1.0),
        errors.InvalidInput,
        "plans.Ask",
    ),
    "more at least than at most": (lambda s: s.submit(_asking(min=3, max=2), 1.0), errors.InvalidInput, "order"),
    "a job of tomorrow": (lambda s: s.submit(standalone.gang("new", 9.0), 1.0), errors.InvalidInput, "when it comes"),
    "a job that fits no node": (
        lambda s: s.submit(standalone.gang("new", 0.0, gpus=5), 1.0),
        errors.Impossible,
        "Ask for less",
    ),
    "bounds for a batch size": (lambda s: s.measure("a", 1.0, batch=BOUNDS), errors.InvalidInput, "`bounds`"),
    "a batch size for bounds": (
        lambda s: s.measure("a", 1.0, bounds=curves.Batch(5)),
        errors.InvalidInput,
        "jobfile.Batch",
    ),
    "a curve that is none": (lambda s: s.measure("a", 1.0, curve=[1.0, 2.0]), errors.InvalidInput, "of_params"),
    "a checkpoint of one that waits": (
        lambda s: s.measure("w", 1.0, checkpoint_at=1.0),
        errors.InvalidInput,
        "jobs that run",
    ),
    "an end that is no time": (
        lambda s: s.measure("a", 1.0, expected_end=float("inf")),
        errors.InvalidInput,
        "leave it out",
    ),
    "a cap for all roles": (lambda s: s.measure("a", 1.0, most=4), errors.InvalidInput, "by role"),
    "a cap of an unknown role": (lambda s: s.measure("a", 1.0, most={"ps": 4}), errors.InvalidInput, "worker"),
    "a cap below the least": (lambda s: s.measure("a", 1.0, most={"worker": 0}), errors.InvalidInput, "or more"),
    "a node that is in use": (lambda s: s.declare([standalone.node("n9", 4)], 1.0), errors.InvalidInput, "first"),
    "a node twice": (
        lambda s: s.declare([standalone.node("n0", 4), standalone.node("n0", 4)], 1.0),
        errors.InvalidInput,
        "name of its own",
    ),
    "devices that do not add up": (
        lambda s: s.declare([nodes.Node(name="n0", capacity=standalone.node("x", 2).capacity)], 1.0),
        errors.InvalidInput,
        "capacity.gpus",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_bad_input_is_refused_and_changes_nothing(what: str) -> None:
    call, error, words = REFUSED[what]
    found = cluster(count=1)
    found.submit(standalone.gang("a", 0.0, least=4, most=4), 0.0)
    found.tick(0.0)
    found.submit(standalone.gang("w", 0.0), 0.0)
    before = found.snapshot()
    with pytest.raises(error) as raised:
        call(found)
    assert words in raised.value.hint
    assert found.snapshot() == before


def test_rules_that_cannot_be_meant_are_refused_at_the_start() -> None:
    with pytest.raises(errors.InvalidInput, match="nonsense"):
        standalone.Scheduler([standalone.node("n0", 1)], plans.Rules(policy="nonsense"))
    wrong = {"goodput": {"power": 2.0}}
    with pytest.raises(errors.InvalidInput, match="power"):
        standalone.Scheduler([standalone.node("n0", 1)], plans.Rules(policy="goodput", policies=wrong))
