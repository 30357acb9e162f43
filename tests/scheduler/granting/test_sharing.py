"""Two gangs on one device: which may share it, and when they part."""

from __future__ import annotations

import pytest
from tests.scheduler import drafted, world

from oarlock.scheduler.granting import sharing

ONE_GPU = """
rules policy=gandiva min_runtime=60 restart=30
node a gpus=1 gpu_memory=80Gi
"""
HOST = "running host gpus=1 gpu_memory=40Gi on=a started=0\n"
GUEST = "job guest gpus=1 gpu_memory=40Gi\n"

PAIRS = {
    "half of the device for each": (HOST + GUEST, ["a[0]/2"]),
    "the guest needs more than half of the memory": (HOST + GUEST.replace("40Gi", "41Gi"), None),
    "the host needs more than half of the memory": (HOST.replace("40Gi", "41Gi") + GUEST, None),
    "the host has just started": (HOST.replace("started=0", "started=9990") + GUEST, None),
    "the host must not be preempted": (HOST.replace("on=a", "on=a preemptible=no") + GUEST, None),
    "the host is stopping": (HOST.replace("on=a", "on=a stopping") + GUEST, None),
    "the host is not there": (HOST.replace("host", "other") + GUEST, None),
    "the host has two devices": (
        "node b gpus=1 gpu_memory=80Gi\nrunning host tasks=2 gpus=1 gpu_memory=40Gi on=a,b started=0\n" + GUEST,
        None,
    ),
}


@pytest.mark.parametrize(("lines", "expected"), PAIRS.values(), ids=PAIRS.keys())
def test_a_gang_gets_half_of_its_hosts_device(lines: str, expected: list[str] | None) -> None:
    draft = drafted.draft(ONE_GPU + lines)
    found = sharing.beside(draft, drafted.turn(draft, "guest", beside="host"))
    assert (found and drafted.places(found)) == expected
    assert {job: drafted.places(move.to) for job, move in draft.moves.items()} == (
        {"host": ["a[0]/2"]} if expected else {}
    ), "the host gives up the other half"
    assert list(draft.going_to) == (["host"] if expected else [])


def halved(of: world.World, job: str) -> None:
    """Let a running gang hold half of its device."""
    one = of.running[job]
    (claim,) = one.holdings
    amount = world.replace(claim.amount, gpus=0, gpu_milli=500)
    of.running[job] = world.replace(one, holdings=(world.replace(claim, amount=amount),))


def test_the_second_half_is_free_at_once() -> None:
    of = drafted.cluster(ONE_GPU + HOST + GUEST)
    halved(of, "host")
    draft = drafted.draft(of)
    found = sharing.beside(draft, drafted.turn(draft, "guest", beside="host"))
    assert found is not None
    assert drafted.places(found) == ["a[0]/2"]
    assert not draft.moves


FREE = "node 0 gpus=1 gpu_memory=80Gi"
PARTED = {
    "the guest has gone: the whole of its device": ("", False, 0, ["a[0]"]),
    "its own device rather than another one": (FREE, False, 0, ["a[0]"]),
    "a free device": (FREE, True, 0, ["0[0]"]),
    "a free device of a slower type": (FREE.replace("gpus=1", "gpus=1:k80"), True, 0, None),
    "no device is free": ("", True, 0, None),
    "it has just started": ("", False, 9701, None),
}


@pytest.mark.parametrize(("lines", "guest", "started", "to"), PARTED.values(), ids=PARTED.keys())
def test_two_gangs_part_where_a_device_is_free(lines: str, guest: bool, started: int, to: list[str] | None) -> None:
    of = drafted.cluster(f"{ONE_GPU}{lines}\n{HOST.replace('started=0', f'started={started}')}")
    halved(of, "host")
    if guest:
        other = drafted.cluster(ONE_GPU + HOST.replace("host", "guest").replace("started=0", "started=9999"))
        halved(other, "guest")
        of.running |= other.running
    draft = drafted.draft(of)
    sharing.apart(draft)
    assert {job: drafted.places(move.to) for job, move in draft.moves.items()} == ({"host": to} if to else {})
    assert draft.restless, "measurements may tell that they should part"


def test_a_gang_passes_over_a_slower_free_device_for_one_of_its_own_type() -> None:
    """A gang of low priority is offered the oldest free type first."""
    types = {"a": "h100", "old": "v100", "same": "h100"}
    typed = "".join(f"node {name} gpus=1:{kind} gpu_memory=80Gi\n" for name, kind in types.items())
    low = ONE_GPU.partition("node")[0] + typed + HOST.replace("on=a", "on=a priority=10")
    of, other = drafted.cluster(low), drafted.cluster(low.replace("host", "guest").replace("started=0", "started=9999"))
    halved(of, "host")
    halved(other, "guest")
    of.running |= other.running
    draft = drafted.draft(of)
    sharing.apart(draft)
    assert {job: drafted.places(move.to) for job, move in draft.moves.items()} == {"host": ["same[0]"]}


@pytest.mark.parametrize("other", ["has a whole device", "has just started on a half"])
def test_a_gang_gets_its_device_back_though_a_gang_before_it_stays(other: str) -> None:
    half = other == "has just started on a half"
    of = drafted.cluster(
        f"{ONE_GPU}node b gpus=1 gpu_memory=80Gi\n{HOST}running other gpus=1 on=b started={9999 if half else 0}"
    )
    halved(of, "host")
    if half:
        halved(of, "other")
    draft = drafted.draft(of)
    drafted.wished(draft, drafted.turn(draft, "other"), drafted.turn(draft, "host"))
    sharing.apart(draft)
    assert {job: drafted.places(move.to) for job, move in draft.moves.items()} == {"host": ["a[0]"]}


@pytest.mark.parametrize(("yields", "started", "stopped"), [(True, 0, True), (True, 9941, False), (False, 0, False)])
def test_a_pair_that_does_not_pay_is_undone(yields: bool, started: int, stopped: bool) -> None:
    draft = drafted.draft(ONE_GPU + HOST.replace("started=0", f"started={started}"))
    drafted.wished(draft, drafted.turn(draft, "host", yields=yields, reason="slower together"))
    sharing.undo(draft)
    assert {job: one.reason for job, one in draft.preemptions.items()} == (
        {"host": "slower together"} if stopped else {}
    )
