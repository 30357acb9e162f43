"""Candidates for the tests of policies: made by hand, and drawn at random."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from oarlock.scheduler.policies import contract
from oarlock.spec import curves, holdings, plans

NOW = 100_000.0
BUDGET = contract.Budget(
    amount=holdings.Resources(cpus_milli=64_000, memory_bytes=2**40, gpus=64), node_devices=(4,) * 16
)
RULES = plans.Rules()


def gang(
    job: str, at: float = 0.0, gpus: int = 1, *, least: int | None = None, most: int | None = None, **known: Any
) -> plans.Gang:
    """One role of `gpus` tasks of one device each."""
    ask = plans.Ask(
        role="worker",
        count=gpus,
        min=gpus if least is None else least,
        max=gpus if most is None else most,
        amount=holdings.Resources(cpus_milli=1000, memory_bytes=2**30, gpus=1),
    )
    return plans.Gang(**{"job": job, "name": job, "pool": "default", "asks": (ask,), "submitted_at": at, **known})


def waiting(gang: plans.Gang) -> contract.Candidate:
    return contract.Candidate(gang=gang, served_s=gang.served_s)


def running(
    gang: plans.Gang, since: float = NOW, *, size: plans.Size | None = None, now: float = NOW, **known: Any
) -> contract.Candidate:
    """It holds what it asked for, or `size`, since then."""
    size = gang.wanted if size is None else size
    held = holdings_of(gang, size)
    served_s = gang.served_s + gang.amount(size).devices * (now - since)
    return contract.Candidate(
        gang=gang, running=plans.Running(gang=gang, holdings=held, started_at=since, **known), served_s=served_s
    )


def holdings_of(gang: plans.Gang, size: plans.Size) -> tuple[holdings.Holding, ...]:
    """Somewhere: four tasks on a node."""
    return tuple(
        holdings.Holding(
            job=gang.job,
            attempt=1,
            role=task.role,
            index=task.index,
            node=f"n{place // 4}",
            amount=task.amount,
            devices=tuple(range(place % 4, place % 4 + task.amount.gpus)),
        )
        for place, task in enumerate(gang.at(size))
    )


def jobs(wishes: list[contract.Wish]) -> list[str]:
    return [wish.job for wish in wishes]


def levels(wishes: list[contract.Wish]) -> dict[str, float]:
    return {wish.job: wish.level for wish in wishes}


@st.composite
def gangs(draw: st.DrawFn, job: str) -> plans.Gang:
    """Few different values, so that equals are met; at times two roles, none elastic, no devices."""
    asks = tuple(draw(_asks(role)) for role in draw(st.sampled_from([("worker",), ("worker", "ps")])))
    starts = draw(st.integers(0, 3))
    return plans.Gang(
        job=job,
        name=draw(st.sampled_from([job, "train-1", "sweep-7"])),
        pool="default",
        asks=asks,
        submitted_at=float(draw(st.sampled_from([0, 1, 50, 90]))) * 1000,
        owner=draw(st.sampled_from(["", "ada", "bob"])),
        priority=draw(st.sampled_from([0, 50, 50, 100])),
        preemptible=draw(st.booleans()),
        served_s=draw(st.sampled_from([0.0, 100.0, 3250.0, 1e5])) if starts else 0.0,
        starts=starts,
        stopped_at=draw(st.sampled_from([None, NOW - 5000, NOW - 60])) if starts else None,
        lasts_s=draw(st.sampled_from([None, 0.0, 600.0])),
        curve=draw(st.one_of(st.none(), speed_curves())),
    )


@st.composite
def _asks(draw: st.DrawFn, role: str) -> plans.Ask:
    least, count, most = sorted(draw(st.tuples(*[st.integers(1, 8)] * 3)))
    return plans.Ask(
        role=role,
        min=least,
        count=count,
        max=most,
        amount=holdings.Resources(
            cpus_milli=1000, memory_bytes=2**30, gpus=draw(st.integers(0, 2)) if role == "worker" else 0
        ),
    )


def speed_curves() -> st.SearchStrategy[curves.Curve]:
    left = st.sampled_from([None, 0.0, 1e6])
    allreduce = st.builds(
        curves.Allreduce,
        compute_s=st.sampled_from([0.01, 0.1]),
        compute_per_example_s=st.sampled_from([0.0, 0.001]),
        near_s=st.sampled_from([0.0, 0.02]),
        far_s=st.sampled_from([0.0, 0.1]),
        far_per_device_s=st.sampled_from([0.0, 0.01]),
        overlap=st.sampled_from([1.0, 2.0]),
        noise=st.sampled_from([None, 1000.0]),
        seen=st.sampled_from([1, 4]),
    )
    table = st.builds(curves.Table, rates=st.sampled_from([(1.0, 1.8, 2.4), (1.0,)]))
    return st.builds(curves.Curve, model=allreduce | table, left=left)


@st.composite
def candidates(draw: st.DrawFn, job: str) -> contract.Candidate:
    one = draw(gangs(job))
    if draw(st.booleans()):
        return waiting(one)
    size = tuple(draw(st.integers(ask.min, ask.max)) for ask in one.asks)
    since = draw(st.sampled_from([NOW, NOW - 30, NOW - 4000]))
    return running(
        one,
        since,
        size=size,
        stopping=draw(st.sampled_from([False, False, True])),
        checkpoint_at=draw(st.sampled_from([None, since])),
        speed=draw(st.sampled_from([None, 1.0, 100.0])),
    )


@st.composite
def crowds(draw: st.DrawFn, most: int = 8) -> list[contract.Candidate]:
    """Some candidates, each with a job of its own."""
    return [draw(candidates(f"j{place}")) for place in range(draw(st.integers(0, most)))]
