"""The machines, what is held on each, and the queue. Each user sees which user, pool and job name holds what.

`authorisation.Access.tenant` decides what that is of a job that belongs to somebody else.
"""

from __future__ import annotations

import msgspec

from oarlock.api import routes
from oarlock.api.security import authorisation
from oarlock.spec import holdings, jobs, nodes, phases, users
from oarlock.store import stores


class Held(authorisation.Tenant, frozen=True, kw_only=True):
    """A job, as far as the caller may know it, and what it holds."""

    amount: holdings.Resources


class NodeState(msgspec.Struct, frozen=True):
    """`holdings` name the jobs by their ids; an id that is hidden is ""."""

    node: nodes.Node
    held: holdings.Resources
    holdings: list[holdings.Holding]
    holders: list[Held] = []


class NodeList(msgspec.Struct, frozen=True):
    items: list[NodeState]
    next: str | None = None


class QueueRow(Held, frozen=True, kw_only=True):
    """`amount` is zero for a job that waits; `since` is when it came to its phase, Unix seconds."""

    phase: phases.Phase
    since: float
    nodes: tuple[str, ...] = ()


class Queue(msgspec.Struct, frozen=True):
    """The jobs that run, then those that wait, oldest first."""

    items: list[QueueRow]
    next: str | None = None


async def show_all(call: routes.Call) -> NodeList:
    found, held, known = await call.access.shared(_look)
    tenants = {job_id: call.access.tenant(job) for job_id, job in known.items()}
    by_node: dict[str, list[holdings.Holding]] = {}
    for holding in held:
        by_node.setdefault(holding.node, []).append(holding)
    return NodeList([_state(node, by_node.get(node.name, []), tenants) for node in found])


async def queue(call: routes.Call) -> Queue:
    """Every active job of every user, as far as the caller may know it."""
    _, held, known = await call.access.shared(_look)
    by_job: dict[str, list[holdings.Holding]] = {}
    for holding in held:
        by_job.setdefault(holding.job, []).append(holding)
    ordered = sorted(known.values(), key=lambda job: (job.id not in by_job, job.created_at, job.id))
    return Queue([_row(call.access.tenant(job), job, by_job.get(job.id, [])) for job in ordered])


def _look(view: stores.View) -> tuple[list[nodes.Node], list[holdings.Holding], dict[str, jobs.Job]]:
    return view.nodes(), view.holdings(), {job.id: job for job in view.active()}


def _state(node: nodes.Node, held: list[holdings.Holding], tenants: dict[str, authorisation.Tenant]) -> NodeState:
    shown = [msgspec.structs.replace(one, job=tenants[one.job].job if one.job in tenants else "") for one in held]
    by_job: dict[str, list[holdings.Holding]] = {}
    for one in held:
        by_job.setdefault(one.job, []).append(one)
    holders = [
        Held(**msgspec.structs.asdict(tenants[job_id]), amount=total(theirs))
        for job_id, theirs in by_job.items()
        if job_id in tenants
    ]
    return NodeState(node, total(held), shown, holders)


def _row(tenant: authorisation.Tenant, job: jobs.Job, held: list[holdings.Holding]) -> QueueRow:
    return QueueRow(
        **msgspec.structs.asdict(tenant),
        amount=total(held),
        phase=job.phase,
        since=job.phase_at,
        nodes=tuple(dict.fromkeys(one.node for one in held)),
    )


def total(held: list[holdings.Holding]) -> holdings.Resources:
    return sum((holding.amount for holding in held), holdings.Resources())


ROUTES: tuple[routes.Route, ...] = (
    routes.Route(
        method="GET",
        path="/api/v1/nodes",
        handler=show_all,
        needs=users.Right.VIEWER,
        summary="nodes, with what is held on each",
        answer=NodeList,
    ),
    routes.Route(
        method="GET",
        path="/api/v1/queue",
        handler=queue,
        needs=users.Right.VIEWER,
        summary="who holds what and who waits, of all users: user, pool and name of each active job",
        answer=Queue,
    ),
)
