"""The record's jobs as a workload: when each was submitted, its size, its time at work, its owner and its pool.

All users get the same jobs, because all users see which user, pool and job name holds what (docs/operations.md).
Names of other users' jobs are those of `Access.tenant`, so that `private_jobs` hides them here, too. Commands and all
other fields of a job file stay out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from oarlock.api import routes
from oarlock.api.security import authorisation
from oarlock.api.services import provided
from oarlock.spec import errors, jobfile, jobs, roles
from oarlock.spec.cluster import nodes, pools
from oarlock.spec.simulator import simulations
from oarlock.store import stores

WEEK_S = 7 * 86_400.0
RESTARTS = 1_000
"""Failures of simulated processes are drawn at random, and do not mean a broken program."""

_NO_GPU = "gpu"


class _Seen(msgspec.Struct, frozen=True):
    found: list[jobs.Job]
    machines: list[nodes.Node]
    declared: list[pools.Pool]


async def show(call: routes.Call) -> simulations.Workload:
    return await read(call.services, call.access, call.query(simulations.Span))


async def read(
    services: provided.Services, access: authorisation.Access, span: simulations.Span
) -> simulations.Workload:
    """Return the jobs that were submitted in the span and have run. Raises InvalidInput for none, or too many."""
    now = services.clock()
    until = now if span.until is None else span.until
    since = max(0.0, until - WEEK_S) if span.since is None else span.since
    most = simulations.MOST_RECORDED
    which = stores.JobFilter(since=since, until=until, ascending=True, limit=most + 1)
    async with services.simulation_turns.of(access.user.name):
        seen = await access.shared(lambda view: _Seen(view.jobs(which), view.nodes(), view.pools()))
    if len(seen.found) > most:
        raise errors.InvalidInput(
            f"More than {most:,} jobs were submitted in that time.", path="since", hint="Choose a shorter time."
        )
    ran = [job for job in seen.found if round(job.ran_s(now), 3) > 0]
    if not ran:
        raise errors.InvalidInput(
            "No job that was submitted in that time has run.", path="since", hint="Choose an earlier time: since=30d"
        )
    if not seen.machines:
        raise errors.InvalidInput(
            "The cluster has no nodes now, so that the workload has none.", hint="See the nodes: oarlock nodes"
        )
    return _workload(access, ran, seen, now)


def _workload(access: authorisation.Access, ran: Sequence[jobs.Job], seen: _Seen, now: float) -> simulations.Workload:
    parents = {pool.parent for pool in seen.declared}
    leaves = {pool.name for pool in seen.declared} - parents
    first, width = ran[0].created_at, len(str(len(ran)))
    return simulations.Workload(
        name="recorded",
        nodes=classes(seen.machines),
        pools=tuple(_pool(pool) for pool in seen.declared),
        jobs=tuple(
            simulations.RecordedJob(
                name=_name(f"{number:0{width}}-{access.tenant(job).name}"),
                owner=job.owner,
                arrivals=simulations.Arrivals(start=round(job.created_at - first, 3)),
                lasts=round(job.ran_s(now), 3),
                spec=_spec(job.spec, job.pool, leaves),
            )
            for number, job in enumerate(ran, start=1)
        ),
    )


def _name(text: str) -> str:
    """Return the text as a valid job name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[: jobfile.MAX_NAME_LENGTH].strip("-")


def _pool(of: pools.Pool) -> dict[str, Any]:
    """Return the pool without a policy of its own, so that the simulated policy orders all jobs."""
    return msgspec.to_builtins(msgspec.structs.replace(of, policy=None, version=0))  # type: ignore[no-any-return]


def _spec(of: jobfile.JobSpec, pool: str, leaves: Collection[str]) -> dict[str, Any]:
    """Return the size that the job asked for, and its pool if that is still there."""
    spec: dict[str, Any] = {
        "roles": {str(name): _role(role) for name, role in of.roles.items()},
        "max_restarts": RESTARTS,
    }
    if set(of.roles) != {roles.RoleName.WORKER}:
        spec["framework"] = str(of.framework)  # which roles there may be
    if pool in leaves:
        spec["pool"] = pool
    return spec


def _role(of: jobfile.Role) -> dict[str, Any]:
    told: dict[str, Any] = {"count": of.count, "cpus": of.held_cpus, "memory": of.memory, "gpus": of.gpus}
    if of.gpus:
        kinds = of.gpu_type if isinstance(of.gpu_type, str) else list(of.gpu_type)
        told |= {"gpu_type": kinds or None, "gpu_memory": of.gpu_memory, "mixed": of.mixed or None}
    return {name: value for name, value in told.items() if value is not None}


def classes(machines: Sequence[nodes.Node]) -> tuple[simulations.NodeClass, ...]:
    """Return the nodes by their kinds. A node with several types of GPU counts with the first one."""
    counted = Counter(
        (
            len(node.devices),
            node.devices[0].type if node.devices else _NO_GPU,
            node.devices[0].memory_bytes if node.devices else 0,
            node.capacity.cpus_milli / 1000,
            node.capacity.memory_bytes,
            node.price_per_h,
        )
        for node in machines
    )
    return tuple(
        simulations.NodeClass(
            count=count,
            gpus=gpus,
            gpu_type=re.sub(r"[^A-Za-z0-9_.-]", "-", kind),
            gpu_memory=gpu_memory,
            cpus=cpus,
            memory=memory,
            price_per_h=price,
        )
        for (gpus, kind, gpu_memory, cpus, memory, price), count in counted.items()
    )


ROUTES: tuple[routes.Route, ...] = (
    routes.look(
        "/api/v1/workloads/recorded",
        show,
        "the jobs of the record as a workload for a simulation",
        simulations.Workload,
        query=simulations.Span,
    ),
)
