"""Refusals in numbers and words: one sentence for each reason, and the old one again where nothing has changed."""

from __future__ import annotations

import re

import msgspec
import pytest

from oarlock.scheduler import wording
from oarlock.scheduler.explaining import contexts, reasons
from oarlock.scheduler.pools import poolbounds
from oarlock.spec import holdings, jobfile, plans, refusals
from oarlock.spec.cluster import nodes, pools

GIB = 1 << 30
CORDON = nodes.Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


def node(name: str, gpus: int = 4, kind: str = "h100", cpus: int = 8, **others: object) -> nodes.Node:
    devices = tuple(nodes.Device(index=index, type=kind, memory_bytes=80 * GIB) for index in range(gpus))
    capacity = holdings.Resources(cpus * 1000, 64 * GIB, gpus)
    return nodes.Node(name=name, capacity=capacity, devices=devices, **others)  # type: ignore[arg-type]


def gang(name: str = "job", tasks: int = 1, gpus: int = 0, least: int = 0, **others: object) -> plans.Gang:
    cards = {field: others.pop(field) for field in ("gpu_types", "gpu_memory_bytes") if field in others}
    ask = plans.Ask(
        role="worker",
        count=tasks,
        min=least or tasks,
        max=tasks,
        amount=holdings.Resources(1000, 0, gpus),
        **cards,  # type: ignore[arg-type]
    )
    given = {"job": name, "name": name, "pool": "default", "asks": (ask,), "submitted_at": 0.0, **others}
    return plans.Gang(**given)  # type: ignore[arg-type]


TEAM_A, TEAM_B = (nodes.Taint(key="team", value=of, effect="NoSchedule", tolerable=True) for of in ("a", "b"))
ONLY_A = nodes.Constraints(tolerates=("team=a",))


def constrained(of: plans.Gang, held: nodes.Constraints) -> plans.Gang:
    return msgspec.structs.replace(of, asks=tuple(msgspec.structs.replace(ask, constraints=held) for ask in of.asks))


def running(name: str, on: str, gpus: int, first: int = 0) -> plans.Running:
    claim = holdings.Holding(
        job=name,
        attempt=1,
        role="worker",
        index=0,
        node=on,
        amount=holdings.Resources(1000, 0, gpus),
        devices=tuple(range(first, first + gpus)),
    )
    return plans.Running(gang=gang(name, 1, gpus), holdings=(claim,), started_at=0.0)


def context(
    *of: nodes.Node, run: tuple[plans.Running, ...] = (), tree: tuple[pools.Pool, ...] = ()
) -> contexts.Context:
    return contexts.Context(plans.Snapshot(nodes=of, running=run, pools=tree))


def told(refusal: refusals.Refusal | None) -> str:
    assert refusal is not None
    return " | ".join(filter(None, [refusal.code, refusal.message, reasons.held_by(refusal, 0.0), refusal.change]))


FULL = context(node("a"), node("b"), run=(running("big", "a", 4), running("small", "b", 2)))
MIXED = context(node("a"), node("old", kind="v100"), run=(running("big", "a", 3), running("other", "old", 4)))
OVER = poolbounds.Over("research", "gpus", 6.0, 8.0)

WORDS = [
    (
        reasons.no_capacity(gang(gpus=4), FULL),
        "no_capacity | It needs 4 GPUs and 1 CPU for 1 task; 2 of 8 GPUs are free. | "
        "big holds 4 GPUs and small holds 2 GPUs.",
    ),
    (
        reasons.no_capacity(gang(tasks=3, gpus=1), FULL),
        "no_capacity | It needs 3 GPUs and 3 CPUs for 3 tasks; 2 of 8 GPUs are free. | "
        "big holds 4 GPUs and small holds 2 GPUs. | With 2 workers instead of 3 it would fit now.",
    ),
    (
        reasons.no_capacity(gang(tasks=4, gpus=2, least=2), FULL),
        "no_capacity | It needs at least 4 GPUs and 2 CPUs for 2 tasks; 2 of 8 GPUs are free. | "
        "big holds 4 GPUs and small holds 2 GPUs. | With 1 worker instead of 2 it would fit now.",
    ),
    (
        reasons.no_capacity(gang(gpus=2, gpu_types=("h100",)), MIXED),
        "no_capacity | It needs 2 h100 GPUs and 1 CPU for 1 task; 1 of 4 h100 GPUs is free. | "
        "big holds 3 GPUs. | It fits once big ends.",
    ),
    (
        reasons.no_capacity(gang(gpus=2, gpu_types=("h100", "v100"), gpu_memory_bytes=40 * GIB), MIXED),
        "no_capacity | It needs 2 GPUs (h100 or v100) with 40 GiB and 1 CPU for 1 task; "
        "1 of 8 GPUs (h100 or v100) with 40 GiB is free. | other holds 4 GPUs and big holds 3 GPUs.",
    ),
    (
        reasons.no_capacity(
            gang(gpus=2), context(node("a"), node("b"), run=(running("x", "a", 3), running("y", "b", 3)))
        ),
        "no_capacity | It needs 2 GPUs and 1 CPU for 1 task; 2 of 8 GPUs are free, but at most 1 on one node. | "
        "x holds 3 GPUs and y holds 3 GPUs.",
    ),
    (
        reasons.no_capacity(
            gang(tasks=2, gpus=2), context(node("a"), node("b"), run=(running("x", "a", 3), running("y", "b", 1)))
        ),
        "no_capacity | It needs 4 GPUs and 2 CPUs for 2 tasks; 4 of 8 GPUs are free, but hold only 1 of its 2 tasks. | "
        "x holds 3 GPUs and y holds 1 GPU. | With 1 worker instead of 2 it would fit now.",
    ),
    (
        reasons.no_capacity(
            gang(tasks=2, gpus=2, topology=jobfile.Topology(same=jobfile.Domain.NODE, required=True)),
            context(node("a"), node("b"), run=(running("x", "a", 2), running("y", "b", 2))),
        ),
        "no_capacity | It needs 4 GPUs and 2 CPUs for 2 tasks within one node; 4 of 8 GPUs are free, but not within "
        "one node. | x holds 2 GPUs and y holds 2 GPUs. | With 1 worker instead of 2 it would fit now.",
    ),
    (
        reasons.no_capacity(gang(gpus=2), context(node("a", gpus=1), node("b", ready=False))),
        "no_capacity | It needs 2 GPUs and 1 CPU for 1 task; 1 of 1 GPU is free (1 of 2 nodes not ready).",
    ),
    (
        reasons.no_capacity(
            gang(gpus=2), context(node("a", taken=holdings.Resources(gpus=3)), node("b", taints=(CORDON,)))
        ),
        "no_capacity | It needs 2 GPUs and 1 CPU for 1 task; 1 of 4 GPUs is free (1 of 2 nodes cordoned or tainted; "
        "pods of others take 3 GPUs).",
    ),
    (
        reasons.no_capacity(gang(), context(node("a", taints=(CORDON,)), node("b", ready=False))),
        "no_nodes | None of 2 nodes takes new tasks: 1 of 2 nodes not ready, 1 of 2 nodes cordoned or tainted. | Bring "
        "a node back; `oarlock nodes` tells the reason.",
    ),
    (
        reasons.no_capacity(
            constrained(gang(gpus=2), ONLY_A),
            context(
                *(node(name, taints=(TEAM_B,)) for name in "bc"),
                node("d", taints=(TEAM_A, TEAM_B)),
                node("a", gpus=1, taints=(TEAM_A,)),
                node("e", taints=(CORDON,)),
            ),
        ),
        "no_capacity | It needs 2 GPUs and 1 CPU for 1 task; 1 of 1 GPU is free (1 of 5 nodes cordoned or tainted; "
        "closed to it: b, c and d (taint team=b:NoSchedule)).",
    ),
    (
        reasons.no_capacity(gang(gpus=6), context(node("a", taints=(TEAM_A,)), node("b"))),
        "no_capacity | It needs 6 GPUs and 1 CPU for 1 task; 4 of 4 GPUs are free (closed to it: a (taint "
        "team=a:NoSchedule)).",
    ),
    (
        reasons.no_capacity(
            constrained(gang(gpus=2), nodes.Constraints(labels=(("disk", "ssd"),))),
            context(node("a", labels={"disk": "hdd"}), node("b")),
        ),
        "no_nodes | None of 2 nodes takes new tasks: closed to it: a and b (no label disk=ssd). | Choose another "
        "pool, or have the administrator change the profiles of this one.",
    ),
    (
        reasons.no_capacity(
            constrained(gang(gpus=2), nodes.Constraints(claims=("imagenet",))),
            context(node("a", lacks=frozenset({"imagenet"}))),
        ),
        "no_nodes | None of 1 nodes takes new tasks: closed to it: a (the volume of claim imagenet cannot be mounted "
        "there). | Mount another volume, or ask the administrator for one that more nodes can mount.",
    ),
    (
        reasons.no_capacity(
            constrained(gang(gpus=2), nodes.Constraints(claims=("devices/slices",))),
            context(node("a", lacks=frozenset({"devices/slices"}))),
        ),
        "no_nodes | None of 1 nodes takes new tasks: closed to it: a (no devices of slices). | Choose another "
        "pool, or have the administrator change the profiles of this one.",
    ),
    (
        reasons.no_capacity(gang(), context(node("a", ready=False))),
        "no_nodes | None of 1 nodes is ready. | Bring a node back; `oarlock nodes` tells the reason.",
    ),
    (
        reasons.behind(gang(), gang("first", tasks=2, gpus=4)),
        "behind | first came first and waits for 8 GPUs and 2 CPUs for 2 tasks.",
    ),
    (
        reasons.reserved(gang(gpus=1), gang("head", gpus=4), until=600.0),
        "reserved | There is room for its 1 GPU and 1 CPU for 1 task, kept for head, which came first and needs 4 GPUs "
        "and 1 CPU for 1 task. | head should start in about 10 min.",
    ),
    (
        reasons.outranked(gang(gpus=1), "it has had 3.2 device-hours", 4, [gang("a"), gang("b")]),
        "outranked | It needs 1 GPU and 1 CPU for 1 task, and the free resources go to a and b for now: "
        "it has had 3.2 device-hours.",
    ),
    (
        reasons.stopping(gang(), [gang("a"), gang("b")]),
        "stopping | Its place is being cleared: a and b are being stopped.",
    ),
    (
        reasons.pool_limit(gang(gpus=4), OVER),
        "pool_limit | It needs 4 GPUs; the pool research uses 6 of its limit of 8 GPUs.",
    ),
    (
        reasons.pool_limit(gang(tasks=3, gpus=4), OVER),
        "never_in_pool | It needs 12 GPUs, and the pool research is limited to 8 GPUs. | "
        "Ask for 8 GPUs at most, choose another pool, or have the limit raised.",
    ),
    (
        reasons.pool_share(gang(gpus=4), OVER, wants=["vision", "speech"]),
        "pool_share | It needs 4 GPUs; the pool research has 6 of the 8 GPUs that it is entitled to; "
        "the rest belongs to vision and speech.",
    ),
    (
        reasons.not_reserved(gang(gpus=4, preemptible=False), OVER, context()),
        "not_reserved | It must not be preempted, and needs 4 GPUs within the 8 GPUs reserved for the pool research, "
        "of which jobs like it hold 6.",
    ),
    (
        reasons.not_reserved(gang(tasks=3, gpus=4, preemptible=False), OVER, context()),
        "not_reserved | It must not be preempted, and needs 12 GPUs; the pool research has a reservation of 8 GPUs.",
    ),
    (
        reasons.never(gang(gpus=5), FULL),
        "never_fits | It needs 5 GPUs and 1 CPU for 1 task; one task needs 5 GPUs, and no node has more than 4. | "
        "Ask for less for each task.",
    ),
    (
        reasons.never(gang(tasks=3, gpus=3), FULL),
        "never_fits | It needs 9 GPUs and 3 CPUs for 3 tasks; all nodes together have 8 GPUs and 16 CPUs, and even "
        "empty they hold only 2 of its tasks. | At most 2 workers would fit.",
    ),
    (
        reasons.never(gang(tasks=2, gpus=4, topology=jobfile.Topology(same=jobfile.Domain.NODE, required=True)), FULL),
        "never_fits | It needs 8 GPUs and 2 CPUs for 2 tasks within one node; all nodes together have 8 GPUs and 16 "
        "CPUs, and no node holds it even when it is empty. | At most 1 worker would fit.",
    ),
    (
        reasons.never(gang(gpus=1, gpu_types=("a100", "tpu")), MIXED),
        "no_such_device | It needs a100 or tpu GPUs; the nodes have h100 and v100. | Choose among these.",
    ),
    (
        reasons.never(gang(gpus=1, gpu_memory_bytes=100 * GIB), FULL),
        "no_such_device | It needs GPUs with 100 GiB; the nodes have h100 (80 GiB). | Choose among these.",
    ),
    (
        reasons.never(gang(gpus=1), context(node("a", gpus=0))),
        "no_such_device | It needs GPUs; no node has any. | Ask for none, or add a node that has some.",
    ),
]


@pytest.mark.parametrize(("refusal", "words"), WORDS, ids=[words.partition(" ")[0] for _, words in WORDS])
def test_every_reason_has_its_sentence_and_its_numbers(refusal: refusals.Refusal, words: str) -> None:
    assert told(refusal) == words
    assert refusal.needed


def test_every_code_can_be_said() -> None:
    said = {refusal.code for refusal, _ in WORDS if refusal is not None}
    assert said | {reasons.backing_off(gang()).code} == set(refusals.Code)


def test_a_possible_gang_is_not_refused_for_ever() -> None:
    assert reasons.never(gang(tasks=2, gpus=4), FULL) is None
    assert reasons.never(gang(gpus=4), context()) is None, "no node is known yet"
    assert reasons.never(gang(gpus=4), context(node("a", ready=False))) is None, "it may come back"


TWO_CORES = context(node("laptop", gpus=0, cpus=2))


def laptop_gang(tasks: int, cpus_milli: int = 1000, nproc: int = 1, least: int = 0) -> plans.Gang:
    ask = plans.Ask(
        role="worker",
        count=tasks,
        min=least or tasks,
        max=tasks,
        amount=holdings.Resources(cpus_milli),
        nproc=nproc,
    )
    return msgspec.structs.replace(gang(), asks=(ask,))


@pytest.mark.parametrize(
    ("asked", "change"),
    [
        (
            laptop_gang(4),
            "At most 2 workers would fit; so would 4 workers with `--cpus 0.5`, or 2 workers with `--nproc 2`.",
        ),
        (
            laptop_gang(3),
            "At most 2 workers would fit; so would 3 workers with `--cpus 0.5`, or 1 worker with `--nproc 3`.",
        ),
        (
            laptop_gang(4, nproc=2),
            "At most 2 workers would fit; so would 4 workers with `--cpus 0.5`, or 2 workers with `--nproc 4`.",
        ),
        (laptop_gang(1, 4000), "It would fit as 1 worker with `--cpus 2`."),
        (laptop_gang(64), "At most 2 workers would fit; so would 2 workers with `--nproc 32`."),
        (laptop_gang(600), "At most 2 workers would fit."),
        (laptop_gang(6, least=4), "At most 2 workers would fit; so would 4 workers with `--cpus 0.5`."),
    ],
    ids=["four", "three", "two processes each", "one large", "many", "too many", "elastic"],
)
def test_a_gang_that_never_fits_is_told_a_size_that_would(asked: plans.Gang, change: str) -> None:
    refusal = reasons.never(asked, TWO_CORES)
    assert refusal is not None
    assert refusal.change == change
    for tasks, flag, value in re.findall(r"(\d+) workers? with `--(cpus|nproc) ([0-9.]+)`", change):
        cpus = round(float(value) * 1000) if flag == "cpus" else asked.asks[0].amount.cpus_milli
        assert reasons.never(laptop_gang(int(tasks), cpus), TWO_CORES) is None, "it is as was said"


def test_a_limit_above_the_pool_counts() -> None:
    tree = (pools.Pool(name="all", limit={"gpus": 2.0}), pools.Pool(name="vision", parent="all"))
    refusal = reasons.never(gang(gpus=3, pool="vision"), context(node("a"), tree=tree))
    assert told(refusal).startswith("never_in_pool | It needs 3 GPUs, and the pool all is limited to 2 GPUs.")


def test_a_gang_that_must_not_be_preempted_fits_the_reservation_or_never_runs() -> None:
    """The reservation counts declared nodes, ready or not; without any reservation, everything is reserved."""
    tree = (pools.Pool(name="vision", reserve={"gpus": 2.0}),)
    there = context(node("a"), node("b", ready=False), tree=tree)

    def never(gpus: int, pool: str, *, preemptible: bool = False, of: contexts.Context = there) -> str:
        refusal = reasons.never(gang(gpus=gpus, pool=pool, preemptible=preemptible), of)
        return "" if refusal is None else told(refusal)

    assert never(3, "vision") == (
        "never_in_pool | It must not be preempted, and needs 3 GPUs; the pool vision has a reservation of 2 GPUs. | "
        "With `preemptible: true` it need not be within the reservation."
    )
    assert never(2, "vision") == never(3, "vision", preemptible=True) == never(4, "default") == ""
    assert never(4, "default", of=context(node("a"))) == ""


def again(one: plans.Gang, refusal: refusals.Refusal) -> plans.Gang:
    return msgspec.structs.replace(one, refusal=refusal)


def test_where_nothing_has_changed_the_old_refusal_is_handed_back() -> None:
    """No words are made for those that wait on; only their place in the queue is told anew."""
    one = gang(gpus=4)
    first = reasons.no_capacity(one, FULL, 7)
    assert reasons.no_capacity(again(one, first), FULL, 7) is first
    moved = reasons.no_capacity(again(one, first), FULL, 3)
    assert (moved.ahead, moved.message) == (3, first.message)
    assert moved.same_kind(first)
    head = gang("head", gpus=4)
    kept = reasons.reserved(one, head, 600.0, 7)
    assert reasons.reserved(again(one, kept), head, 600.0, 7) is kept
    assert reasons.reserved(again(one, kept), head, 900.0, 7).until == 900.0
    limit = reasons.pool_limit(one, OVER, 7)
    assert reasons.pool_limit(again(one, limit), OVER, 7) is limit


def test_other_numbers_and_other_holders_are_news() -> None:
    one = gang(gpus=4)
    first = reasons.no_capacity(one, FULL)
    fuller = context(node("a"), node("b"), run=(running("big", "a", 4), running("small", "b", 3)))
    assert not reasons.no_capacity(again(one, first), fuller).same_kind(first)
    others = context(node("a"), node("b"), run=(running("new", "a", 4), running("small", "b", 2)))
    changed = reasons.no_capacity(again(one, first), others)
    assert not changed.same_kind(first), "a gang that waits for `big` must not be told so when `big` has ended"
    assert "new holds 4 GPUs" in reasons.held_by(changed, 0.0)


def test_deep_in_the_queue_only_another_reason_is_news() -> None:
    one = gang(gpus=4)
    first = reasons.no_capacity(one, FULL, contexts.REFRESHED)
    fuller = context(node("a"), node("b"), run=(running("big", "a", 4), running("small", "b", 3)))
    assert reasons.no_capacity(again(one, first), fuller, contexts.REFRESHED) is first
    near = reasons.no_capacity(again(one, first), fuller, contexts.REFRESHED - 1)
    assert not near.same_kind(first)
    larger = again(gang(gpus=3), first)
    assert reasons.no_capacity(larger, fuller, contexts.REFRESHED).needed["gpus"] == 3, "it asks for something else"
    assert reasons.behind(again(one, first), gang("head"), contexts.REFRESHED).code is refusals.Code.BEHIND


def test_a_terse_scene_says_why_and_no_more() -> None:
    quiet = context(node("a"), run=(running("big", "a", 4),))
    quiet.terse = True
    refusal = reasons.no_capacity(gang(gpus=4), quiet)
    assert (refusal.code, refusal.message, refusal.needed["gpus"]) == (refusals.Code.NO_CAPACITY, "", 4)


def test_at_most_three_holders_are_named_and_five_kept() -> None:
    many = tuple(running(f"r{number}", "a", 1, number) for number in range(8))
    refusal = reasons.no_capacity(gang(gpus=1), context(node("a", gpus=8), run=many))
    assert [holder.job for holder in refusal.holders] == ["r0", "r1", "r2", "r3", "r4"]
    assert reasons.held_by(refusal, 0.0) == "r0 holds 1 GPU, r1 holds 1 GPU and r2 holds 1 GPU."


def test_resources_that_the_plan_has_granted_are_not_free() -> None:
    busy = context(node("a"))
    busy.free()
    busy.space.take(running("launched", "a", 3).holdings)
    assert "; 1 of 4 GPUs is free." in reasons.no_capacity(gang(gpus=2), busy).message


@pytest.mark.parametrize(
    ("low_s", "high_s", "words"),
    [
        (12, 12, "12 s"),
        (12, 40, "12 to 40 s"),
        (720, 2400, "12 to 40 min"),
        (720, 755, "12 min"),
        (3000, 7200, "50 min to 2 h"),
        (90, 5400, "1.5 min to 1.5 h"),
        (0, 0, "0 s"),
        (86_400, 4 * 86_400, "24 h to 4 d"),
    ],
)
def test_times_to_come_are_as_precise_as_they_can_be_meant(low_s: float, high_s: float, words: str) -> None:
    assert wording.span(low_s, high_s) == words


@pytest.mark.parametrize(
    ("place", "words"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (11, "11th"), (112, "112th"), (1023, "1,023rd")]
)
def test_places_in_the_queue(place: int, words: str) -> None:
    assert wording.ordinal(place) == words


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([], ""),
        (["a"], "a"),
        (list("ab"), "a and b"),
        (list("abcd"), "a, b, c and d"),
        (list("abcde"), "a, b, c and 2 others"),
    ],
)
def test_lists_are_cut_where_more_than_one_is_left_out(names: list[str], words: str) -> None:
    assert wording.named(names) == words


@pytest.mark.parametrize(
    ("resource", "value", "words"),
    [
        ("gpus", 0.5, "0.5 GPUs"),
        ("gpus", 1, "1 GPU"),
        ("cpus", 12_000, "12,000 CPUs"),
        ("memory", 3 << 29, "1.5 GiB"),
        ("gpus", 1 / 3, "0.333 GPUs"),
    ],
)
def test_amounts_in_words(resource: str, value: float, words: str) -> None:
    assert wording.shown(resource, value) == words
