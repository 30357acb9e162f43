"""The invariants of every plan, for any cluster, queue and policy, written anew from the definitions alone.

`check` raises AssertionError for the first thing that is broken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec
from tests.scheduler import reference

from oarlock.scheduler.pools import entitlement
from oarlock.spec import holdings, plans, refusals
from oarlock.spec.cluster import nodes, pools

Claims = Iterable[holdings.Holding]
INFINITE = float("inf")
SPEEDS = {"v100": 1.0, "h100": 4.0}
"""The training speed of a device, relative to a V100."""


def check(snapshot: plans.Snapshot, plan: plans.Plan, now: float) -> None:
    told_once(snapshot, plan)
    for launch in plan.launches:
        gang = next(gang for gang in snapshot.waiting if gang.job == launch.job)
        assert gang.not_before is None or gang.not_before <= now
        whole(gang, launch.holdings, snapshot)
    running = {job.job: job for job in snapshot.running}
    for change in (*plan.resizes, *plan.moves):
        whole(running[change.job].gang, change.to, snapshot)
    for resize in plan.resizes:
        assert resize.size != running[resize.job].size or resize.to != running[resize.job].holdings
        assert resize.size == sizes(running[resize.job].gang, resize.to)
    for move in plan.moves:
        assert sizes(running[move.job].gang, move.to) == running[move.job].size
    within_nodes(snapshot, plan)
    within_limits(snapshot, plan)
    within_reservations(snapshot, plan)
    nobody_borrows_what_is_static(snapshot, plan)
    who_is_touched(snapshot, plan, now)


def told_once(snapshot: plans.Snapshot, plan: plans.Plan) -> None:
    """A waiting gang starts or is refused; a running gang is changed in one way at most."""
    waiting = [gang.job for gang in snapshot.waiting]
    told = [*(launch.job for launch in plan.launches), *plan.refusals]
    assert sorted(told) == sorted(waiting), set(waiting) ^ set(told)
    touched = Counter(one.job for one in (*plan.preemptions, *plan.resizes, *plan.moves))
    assert not touched or max(touched.values()) == 1
    stay = {job.job for job in snapshot.running if not job.stopping}
    assert touched.keys() <= stay
    assert plan.batches.keys() <= stay - touched.keys()
    for job, refusal in plan.refusals.items():
        assert refusal.message, job


def whole(gang: plans.Gang, claims: tuple[holdings.Holding, ...], snapshot: plans.Snapshot) -> None:
    """All tasks of a size that the gang allows, each as it asks for, on nodes that will do."""
    machines = {node.name: node for node in snapshot.nodes}
    types: set[str] = set()
    for ask in gang.asks:
        mine = [claim for claim in claims if claim.role == ask.role]
        assert ask.min <= len(mine) <= ask.max, (gang.job, ask.role, len(mine))
        assert sorted(claim.index for claim in mine) == list(range(len(mine)))
        for claim in mine:
            node = machines[claim.node]
            assert node.ready, claim.node
            assert reference.allows(node, gang), (claim.node, node.taints, node.labels, ask.constraints)
            assert claim.job == gang.job
            assert claim.amount == ask.amount or claim.amount == half(gang, ask.amount)
            cards = [device for device in node.devices if device.index in claim.devices]
            assert len(cards) == len(claim.devices) == ask.amount.gpus + bool(ask.amount.gpu_milli)
            part = claim.amount.gpu_milli or 1000
            assert all(card.memory_bytes * part // 1000 >= ask.gpu_memory_bytes for card in cards)
            assert not ask.gpu_types or all(card.type in ask.gpu_types for card in cards)
            assert len(claim.ports) == (ask.ports if node.ports else 0)
            types |= {card.type for card in cards}
    assert len(claims) == sum(len([one for one in claims if one.role == ask.role]) for ask in gang.asks)
    assert gang.mixed or len(types) <= 1, types
    if gang.topology is not None and gang.topology.required:
        places = {domain(machines[claim.node], str(gang.topology.same)) for claim in claims}
        assert len(places) == 1, places
        assert None not in places


def half(gang: plans.Gang, amount: holdings.Resources) -> holdings.Resources | None:
    """Two gangs may share a device if each has one task that was measured, and may be stopped."""
    measured = gang.curve is not None and gang.curve.samples
    if amount.gpus != 1 or len(gang.tasks) != 1 or not measured or not gang.preemptible:
        return None
    return msgspec.structs.replace(amount, gpus=0, gpu_milli=500)


def domain(node: nodes.Node, level: str) -> str | None:
    return node.name if level == "node" else node.domains.get(level) or (node.name if level == "nvlink" else None)


def within_nodes(snapshot: plans.Snapshot, plan: plans.Plan) -> None:
    """Now: what is held, and what starts. Later: what stays, what starts, and where those go on that were stopped."""
    started = [claim for launch in plan.launches for claim in launch.holdings]
    fits([claim for job in snapshot.running for claim in job.holdings], started, snapshot.nodes)
    stopped = {one.job for one in (*plan.preemptions, *plan.resizes, *plan.moves)}
    stays = [claim for job in snapshot.running if not job.stopping and job.job not in stopped for claim in job.holdings]
    again = [claim for change in (*plan.resizes, *plan.moves) for claim in change.to]
    fits(stays, [*started, *again], snapshot.nodes)


def fits(held: Claims, come: Claims, of: Iterable[nodes.Node]) -> None:
    """No node to which anything comes gives more than it has, no device and no port twice. (One that came back smaller
    than it was may hold too much already: nothing comes there. A device that it has no more is not held.)
    """
    there = {claim.node for claim in come}
    machines = {node.name: node for node in of if node.name in there}
    amounts: dict[str, holdings.Resources] = {}
    shares: Counter[tuple[str, int]] = Counter()
    ports: Counter[tuple[str, int]] = Counter()
    for claim in (*held, *come):
        if claim.node in machines:
            there_still = still_there(claim, machines[claim.node])
            amounts[claim.node] = amounts.get(claim.node, holdings.Resources()) + there_still
            for device in claim.devices:
                shares[claim.node, device] += claim.amount.gpu_milli or 1000
            ports.update((claim.node, port) for port in claim.ports)
    for name, amount in amounts.items():
        assert amount.fits(machines[name].capacity), (name, amount, machines[name].capacity)
    assert all(share <= 1000 for share in shares.values()), shares
    assert all(count == 1 for count in ports.values()), ports


def still_there(claim: holdings.Holding, node: nodes.Node) -> holdings.Resources:
    """Return its holdings, less devices that the node has lost."""
    lost = set(claim.devices) - {device.index for device in node.devices}
    if not lost:
        return claim.amount
    gpus = max(0, claim.amount.gpus - len(lost))
    return msgspec.structs.replace(claim.amount, gpus=gpus, gpu_milli=0)


def within_limits(snapshot: plans.Snapshot, plan: plans.Plan) -> None:
    """No start takes its pool, or one above it, beyond its limit: not now, and not once all has come."""
    gangs = {gang.job: gang for gang in snapshot.waiting} | {job.job: job.gang for job in snapshot.running}
    stopped = {one.job for one in (*plan.preemptions, *plan.resizes, *plan.moves)}
    now = [(job.gang.pool, total(job.holdings)) for job in snapshot.running]
    later = [
        (job.gang.pool, total(job.holdings)) for job in snapshot.running if not job.stopping and job.job not in stopped
    ]
    starts = [(gangs[launch.job].pool, total(launch.holdings)) for launch in plan.launches]
    grows = [
        (gangs[change.job].pool, total(change.to))
        for change in plan.resizes
        if sum(change.size) > sum(next(job for job in snapshot.running if job.job == change.job).size)
    ]
    goes_on = [(gangs[change.job].pool, total(change.to)) for change in (*plan.resizes, *plan.moves)]
    declared = {pool.name: pool for pool in snapshot.pools}
    for held, come in ((now, starts), ([*later, *goes_on], [*starts, *grows])):
        for pool in snapshot.pools:
            for resource, limit in pool.limit.items():
                more = [amount for leaf, amount in come if pool.name in line(leaf, declared)]
                if any(pools.amounts(amount)[resource] for amount in more):
                    used = [amount for leaf, amount in (*held, *starts) if pool.name in line(leaf, declared)]
                    together = sum(pools.amounts(amount)[resource] for amount in used)
                    assert together <= limit + 1e-6, (pool.name, resource, together, limit)


def within_reservations(snapshot: plans.Snapshot, plan: plans.Plan) -> None:
    """A gang that must not be preempted starts within its pool's reservation."""
    gangs = {gang.job: gang for gang in snapshot.waiting}
    fixed = [(gangs[one.job].pool, total(one.holdings)) for one in plan.launches if not gangs[one.job].preemptible]
    if not fixed or not bounded(snapshot):
        return
    reserved = entitlement.reserved(snapshot.pools, entitlement.capacity(snapshot.nodes))
    held = [(job.gang.pool, total(job.holdings)) for job in snapshot.running if not job.gang.preemptible]
    for leaf in {leaf for leaf, _ in fixed}:
        for resource in pools.RESOURCES:
            if any(pools.amounts(amount)[resource] for name, amount in fixed if name == leaf):
                together = sum(pools.amounts(amount)[resource] for name, amount in (*held, *fixed) if name == leaf)
                assert together <= reserved.get(leaf, {}).get(resource, 0.0) * (1 + 1e-6) + 1e-6


def nobody_borrows_what_is_static(snapshot: plans.Snapshot, plan: plans.Plan) -> None:
    """A gang that starts or grows beyond its pool's entitlement leaves static reservations of others idle, unless its
    pool gives up as much. (A place that was cleared for a gang before nodes were lost, or pools changed, is its own.)
    """
    capacity = entitlement.capacity(snapshot.nodes)
    if not bounded(snapshot) or entitlement.shortages(snapshot.pools, capacity) or not nested(snapshot.pools):
        return
    gangs = {gang.job: gang for gang in snapshot.waiting} | {job.job: job.gang for job in snapshot.running}
    declared = {pool.name: pool for pool in snapshot.pools}
    changed = {one.job: total(one.to) for one in (*plan.resizes, *plan.moves)}
    gone = {one.job for one in plan.preemptions} | {job.job for job in snapshot.running if job.stopping}
    held = {job.job: total(job.holdings) for job in snapshot.running if job.job not in gone} | changed
    held |= {launch.job: total(launch.holdings) for launch in plan.launches}
    entitled = entitlement.divide(snapshot.pools, capacity, entitlement.demand(snapshot.waiting, snapshot.running))

    def together(pool: str | None, resource: str) -> float:
        inside = [one for job, one in held.items() if pool in (None, *line(gangs[job].pool, declared), gangs[job].pool)]
        return sum(pools.amounts(one)[resource] for one in inside)

    stay = [job for job in snapshot.running if not job.stopping]
    before = {job.job: pools.amounts(total(job.holdings)) for job in snapshot.running}
    promised = {
        gang.job
        for gang in snapshot.waiting
        if gang.destined or (gang.refusal is not None and gang.refusal.code is refusals.Code.STOPPING)
    }
    grown = {
        (gangs[job].pool, resource)
        for job in {one.job for one in (*plan.resizes, *plan.launches)} - promised
        for resource, amount in pools.amounts(held[job]).items()
        if amount > before.get(job, {}).get(resource, 0.0)
    }
    for leaf, resource in grown:
        for pool in snapshot.pools:
            kept = resource in pool.static and resource in pool.reserve and pool.name not in line(leaf, declared)
            had = sum(before[job.job][resource] for job in stay if job.gang.pool == leaf)
            if kept and together(leaf, resource) > max(had, entitled[leaf][resource]) + 1e-6:
                idle = max(0.0, pool.reserve[resource] - together(pool.name, resource))
                assert together(None, resource) + idle <= capacity[resource] + 1e-6, (leaf, pool.name, resource)


def nested(declared: tuple[pools.Pool, ...]) -> bool:
    """Whether reservations are within limits, and those below a pool within its own: the server accepts no other."""
    return all(
        sum(child.reserve.get(resource, 0.0) for child in declared if child.parent == pool.name)
        <= pool.reserve.get(resource, 0.0)
        <= pool.limit.get(resource, INFINITE)
        for pool in declared
        for resource in pools.RESOURCES
    )


def who_is_touched(snapshot: plans.Snapshot, plan: plans.Plan, now: float) -> None:
    running = {job.job: job for job in snapshot.running}
    waiting = {gang.job: gang for gang in snapshot.waiting}
    touched = [*plan.preemptions, *plan.resizes, *plan.moves]
    assert snapshot.reallocate or not (touched or plan.batches)
    for one in touched:
        assert running[one.job].gang.preemptible, one
        young = now - running[one.job].started_at < snapshot.rules.min_runtime_s
        assert not young or (not isinstance(one, plans.Preemption) and is_faster(one, running[one.job], snapshot)), one
    for stopped in plan.preemptions:
        if stopped.by not in waiting:  # one that runs, and grows as its policy wishes
            continue
        victim, by = running[stopped.job].gang, waiting[stopped.by]
        assert stopped.by not in {launch.job for launch in plan.launches}
        if victim.pool == by.pool or not bounded(snapshot):
            policy = next((pool.policy for pool in snapshot.pools if pool.name == by.pool), None)
            policy = policy or snapshot.rules.policy
            assert policy != "fifo", "no gang is stopped for another"
            assert policy != "priority" or victim.priority < by.priority


def is_faster(change: plans.Resize | plans.Move, job: plans.Running, snapshot: plans.Snapshot) -> bool:
    """Whether a gang without a speed curve gains by a change: before its minimum run time it is changed for nothing
    else, least of all for another gang.
    """
    before, after = (_speed(claims, snapshot) for claims in (job.holdings, change.to))
    return after > before and not (isinstance(change, plans.Resize) and change.by)


def _speed(claims: Claims, snapshot: plans.Snapshot) -> tuple[float, int]:
    """Return the published speed of its devices, which wait for the slowest one; then the number of its tasks."""
    types = {(node.name, device.index): device.type for node in snapshot.nodes for device in node.devices}
    speeds = [SPEEDS.get(types[claim.node, index], 1.0) for claim in claims for index in claim.devices]
    return len(speeds) * min(speeds, default=0.0), len(list(claims))


def bounded(snapshot: plans.Snapshot) -> bool:
    """Whether there is more than the one pool that nothing bounds."""
    return any(pool.name != pools.DEFAULT or pool.limit or pool.reserve for pool in snapshot.pools)


def line(leaf: str, declared: dict[str, pools.Pool]) -> list[str]:
    found: list[str] = []
    name: str | None = leaf
    while name in declared and name not in found:
        found.append(name)
        name = declared[name].parent
    return found


def sizes(gang: plans.Gang, claims: Claims) -> plans.Size:
    roles = Counter(claim.role for claim in claims)
    return tuple(roles[ask.role] for ask in gang.asks)


def total(claims: Claims) -> holdings.Resources:
    return sum((claim.amount for claim in claims), holdings.Resources())
