# Made by `make sdk` from `asynchronous/clusterverbs.py`: change that file, not this one.
"""The verbs about the cluster: nodes, the queue, pools, usage."""

from __future__ import annotations

from typing import Any

from oarlock.client import requests, verbs
from oarlock.client.synchronous import caller
from oarlock.spec import bodies, jobs

# A name, not a module: a method below bears the module's name.
from oarlock.spec.cluster.pools import Pool
from oarlock.spec.simulator import simulations


class ClusterVerbs(caller.Caller):
    """Verbs about the cluster."""

    def nodes(self) -> list[bodies.NodeState]:
        """Return the nodes and their holdings."""
        page = self._sender.send(requests.nodes())
        return list(page.items)

    def queue(self) -> list[bodies.QueueRow]:
        """Return the running and waiting jobs of all users: user, pool, name and held amounts."""
        page = self._sender.send(requests.queue())
        return list(page.items)

    def forecasts(self) -> bodies.Forecasts:
        """Return the expected start of every waiting job of all users, and the expected end of every running one."""
        return self._sender.send(requests.forecasts())

    def history(self, *, since: float | None = None, until: float | None = None, limit: int = 1000) -> bodies.History:
        """Return which jobs held which devices from `since`, by default a day before `until`, to `until` or now.

        At most `limit` ended attempts are told, those that ended last.
        """
        return self._sender.send(requests.history(since, until, limit))

    def pools(self) -> bodies.PoolList:
        """Return the pools in the order of the drawn tree, and the capacity that they divide."""
        return self._sender.send(requests.pools())

    def set_pool(self, name: str, **fields: Any) -> Pool:
        """Make the pool or change these fields of it (`oarlock.spec.cluster.poolchanges.Change`), as an administrator.

        Raises InvalidInput and Conflict with the numbers, VersionMismatch where `version` is not the present one.
        """
        return self._sender.send(requests.set_pool(name, verbs.change_of(fields)))

    def preview_pool(self, name: str, **fields: Any) -> bodies.PoolPreview:
        """Return the effects of the same change by `set_pool`, which is not made: entitlements, starts, stops.

        Raises the errors that `set_pool` would raise.
        """
        return self._sender.send(requests.preview_pool(name, verbs.change_of(fields)))

    def remove_pool(self, name: str) -> None:
        """Remove a pool, as an administrator. Raises Conflict while it has jobs or pools below it."""
        self._sender.send(requests.remove_pool(name))

    def samples(self, *, since: float | None = None, until: float | None = None, limit: int = 288) -> bodies.Samples:
        """Return samples of the last day, or of another time: the use and the entitlement of each pool, and the state
        of the devices. Times are Unix seconds; `limit` samples at most are spread over the time.
        """
        return self._sender.send(requests.samples(since, until, limit))

    def usage(self, *, since: float | None = None, by: str = "user") -> list[bodies.UsageRow]:
        """Return the hours and the cost by `user`, `pool`, `gpu_type` or `day`, of the parts of attempts after `since`.

        By day, the last 30 days are told where no time is given.
        """
        page = self._sender.send(requests.usage(since, by))
        return list(page.items)

    def workloads(self) -> simulations.Choices:
        """Return the bundled workloads and the policies that `simulate` takes."""
        return self._sender.send(requests.workloads())

    def recorded(self, *, since: float | None = None, until: float | None = None) -> simulations.Workload:
        """Return the jobs that were submitted from `since`, by default a week before `until`, to `until` or now.

        Written as JSON or YAML, the workload is a scenario that `oarlock simulate` reads. Raises InvalidInput where no
        job of that time has run, or too many jobs were submitted.
        """
        return self._sender.send(requests.recorded(since, until))

    def simulate(self, asked: simulations.Request) -> jobs.Job:
        """Run a simulation on the server, and return its job.

        Raises InvalidInput, Unsupported where the server runs none, and Conflict while one of yours is under way.
        """
        return self._sender.send(requests.simulate(asked))

    def simulation(self, job: str) -> simulations.Simulation:
        """Return the progress of a simulation, and its outcome once it has completed. Raises NotFound."""
        return self._sender.send(requests.simulation(job))
