"""The verbs about the cluster: nodes, the queue, pools, usage."""

from __future__ import annotations

from typing import Any

from oarlock.client import requests, verbs
from oarlock.client.asynchronous import caller
from oarlock.spec import bodies, jobs

# A name, not a module: a method below bears the module's name.
from oarlock.spec.cluster.pools import Pool
from oarlock.spec.simulator import simulations


class AsyncClusterVerbs(caller.AsyncCaller):
    """Verbs about the cluster."""

    async def nodes(self) -> list[bodies.NodeState]:
        """Return the nodes and their holdings."""
        page = await self._sender.send(requests.nodes())
        return list(page.items)

    async def queue(self) -> list[bodies.QueueRow]:
        """Return the running and waiting jobs of all users: user, pool, name and held amounts."""
        page = await self._sender.send(requests.queue())
        return list(page.items)

    async def forecasts(self) -> bodies.Forecasts:
        """Return the expected start of every waiting job of all users, and the expected end of every running one."""
        return await self._sender.send(requests.forecasts())

    async def history(
        self, *, since: float | None = None, until: float | None = None, limit: int = 1000
    ) -> bodies.History:
        """Return which jobs held which devices from `since`, by default a day before `until`, to `until` or now.

        At most `limit` ended attempts are told, those that ended last.
        """
        return await self._sender.send(requests.history(since, until, limit))

    async def pools(self) -> bodies.PoolList:
        """Return the pools in the order of the drawn tree, and the capacity that they divide."""
        return await self._sender.send(requests.pools())

    async def set_pool(self, name: str, **fields: Any) -> Pool:
        """Make the pool or change these fields of it (`oarlock.spec.cluster.poolchanges.Change`), as an administrator.

        Raises InvalidInput and Conflict with the numbers, VersionMismatch where `version` is not the present one.
        """
        return await self._sender.send(requests.set_pool(name, verbs.change_of(fields)))

    async def preview_pool(self, name: str, **fields: Any) -> bodies.PoolPreview:
        """Return the effects of the same change by `set_pool`, which is not made: entitlements, starts, stops.

        Raises the errors that `set_pool` would raise.
        """
        return await self._sender.send(requests.preview_pool(name, verbs.change_of(fields)))

    async def remove_pool(self, name: str) -> None:
        """Remove a pool, as an administrator. Raises Conflict while it has jobs or pools below it."""
        await self._sender.send(requests.remove_pool(name))

    async def samples(
        self, *, since: float | None = None, until: float | None = None, limit: int = 288
    ) -> bodies.Samples:
        """Return samples of the last day, or of another time: the use and the entitlement of each pool, and the state
        of the devices. Times are Unix seconds; `limit` samples at most are spread over the time.
        """
        return await self._sender.send(requests.samples(since, until, limit))

    async def usage(self, *, since: float | None = None, by: str = "user") -> list[bodies.UsageRow]:
        """Return the hours and the cost by `user`, `pool`, `gpu_type` or `day`, of the parts of attempts after `since`.

        By day, the last 30 days are told where no time is given.
        """
        page = await self._sender.send(requests.usage(since, by))
        return list(page.items)

    async def workloads(self) -> simulations.Choices:
        """Return the bundled workloads and the policies that `simulate` takes."""
        return await self._sender.send(requests.workloads())

    async def recorded(self, *, since: float | None = None, until: float | None = None) -> simulations.Workload:
        """Return the jobs that were submitted from `since`, by default a week before `until`, to `until` or now.

        Written as JSON or YAML, the workload is a scenario that `oarlock simulate` reads. Raises InvalidInput where no
        job of that time has run, or too many jobs were submitted.
        """
        return await self._sender.send(requests.recorded(since, until))

    async def simulate(self, asked: simulations.Request) -> jobs.Job:
        """Run a simulation on the server, and return its job.

        Raises InvalidInput, Unsupported where the server runs none, and Conflict while one of yours is under way.
        """
        return await self._sender.send(requests.simulate(asked))

    async def simulation(self, job: str) -> simulations.Simulation:
        """Return the progress of a simulation, and its outcome once it has completed. Raises NotFound."""
        return await self._sender.send(requests.simulation(job))
