"""The resource pools, and what is held in each by its own jobs."""

from __future__ import annotations

import msgspec

from oarlock.api import nodes, routes
from oarlock.spec import holdings, pools, users
from oarlock.store import port as stores


class PoolState(msgspec.Struct, frozen=True):
    pool: pools.Pool
    held: holdings.Resources
    running: int
    waiting: int


class PoolList(msgspec.Struct, frozen=True):
    items: list[PoolState]
    next: str | None = None


async def show_all(call: routes.Call) -> PoolList:
    return PoolList(await call.access.shared(_look))


def _look(view: stores.View) -> list[PoolState]:
    declared = {pool.name: pool for pool in view.pools()}
    declared.setdefault(pools.DEFAULT, pools.Pool(name=pools.DEFAULT))
    active = view.active()
    pool_of = {job.id: job.pool for job in active}
    held: dict[str, list[holdings.Holding]] = {}
    for holding in view.holdings():
        held.setdefault(pool_of.get(holding.job, pools.DEFAULT), []).append(holding)
    return [
        PoolState(
            pool=pool,
            held=nodes.total(held.get(name, [])),
            running=sum(job.pool == name and job.live is not None for job in active),
            waiting=sum(job.pool == name and job.live is None for job in active),
        )
        for name, pool in sorted(declared.items())
    ]


ROUTES: tuple[routes.Route, ...] = (
    routes.Route(
        method="GET",
        path="/api/v1/pools",
        handler=show_all,
        needs=users.Right.VIEWER,
        summary="pools, with what is held in each",
        answer=PoolList,
    ),
)
