"""The nodes with their holdings, and the queue. All users see which user, pool and job holds which amounts.

`authorisation.Access.tenant` decides how much a user sees of another user's job.
"""

from __future__ import annotations

import msgspec

from oarlock.api import routes
from oarlock.scheduler import gangs
from oarlock.spec import bodies, holdings, jobs, phases
from oarlock.spec.cluster import nodes
from oarlock.store import stores


async def show_all(call: routes.Call) -> bodies.NodeList:
    found, held, known = await call.access.shared(_look)
    tenants = {job_id: call.access.tenant(job) for job_id, job in known.items()}
    by_node: dict[str, list[holdings.Holding]] = {}
    for holding in held:
        by_node.setdefault(holding.node, []).append(holding)
    return bodies.NodeList(tuple(_state(node, by_node.get(node.name, []), tenants) for node in found))


async def queue(call: routes.Call) -> bodies.Queue:
    """List the active jobs of all users, with the facts that the caller may see."""
    _, held, known = await call.access.shared(_look)
    by_job: dict[str, list[holdings.Holding]] = {}
    for holding in held:
        by_job.setdefault(holding.job, []).append(holding)
    ordered = sorted(known.values(), key=lambda job: (job.id not in by_job, job.created_at, job.id))
    return bodies.Queue(tuple(_row(call.access.tenant(job), job, by_job.get(job.id, [])) for job in ordered))


def _look(view: stores.View) -> tuple[list[nodes.Node], list[holdings.Holding], dict[str, jobs.Job]]:
    return view.nodes(), view.holdings(), {job.id: job for job in view.active()}


def _state(node: nodes.Node, held: list[holdings.Holding], tenants: dict[str, bodies.Tenant]) -> bodies.NodeState:
    shown = [msgspec.structs.replace(one, job=tenants[one.job].job if one.job in tenants else "") for one in held]
    by_job: dict[str, list[holdings.Holding]] = {}
    for one in held:
        by_job.setdefault(one.job, []).append(one)
    holders = [
        bodies.Held(**msgspec.structs.asdict(tenants[job_id]), amount=total(theirs))
        for job_id, theirs in by_job.items()
        if job_id in tenants
    ]
    bare = msgspec.structs.replace(node, lacks=(), barred=()) if node.lacks or node.barred else node  # claims of others
    return bodies.NodeState(bare, total(held), tuple(shown), tuple(holders))


def _row(tenant: bodies.Tenant, job: jobs.Job, held: list[holdings.Holding]) -> bodies.QueueRow:
    waits = job.phase is phases.Phase.QUEUED and not held
    refusal = job.refusal if waits else None
    return bodies.QueueRow(
        **msgspec.structs.asdict(tenant),
        amount=total(held),
        phase=job.phase,
        since=job.phase_at,
        nodes=tuple(dict.fromkeys(one.node for one in held)),
        needs=_needs(job) if waits else None,
        code=refusal.code if refusal is not None else None,
        holders=tuple(msgspec.structs.replace(one, job="") for one in refusal.holders) if refusal is not None else (),
    )


def _needs(job: jobs.Job) -> holdings.Resources:
    """Return the amount of the smallest gang of the job."""
    gang = gangs.gang(job)
    return gang.amount(gang.smallest)


def total(held: list[holdings.Holding]) -> holdings.Resources:
    return sum((holding.amount for holding in held), holdings.Resources())


ROUTES: tuple[routes.Route, ...] = (
    routes.look("/api/v1/nodes", show_all, "nodes, with the holdings on each", bodies.NodeList),
    routes.look(
        "/api/v1/queue",
        queue,
        "the running and waiting jobs of all users: user, pool, name, held or needed amounts, and who holds these",
        bodies.Queue,
    ),
)
