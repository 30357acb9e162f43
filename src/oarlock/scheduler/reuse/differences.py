"""The gangs that came and went between two snapshots, by identity: the same object has not changed."""

from __future__ import annotations

from oarlock.scheduler.reuse import gangfacts
from oarlock.spec import plans


class Differences:
    """The differences that the last `follow` found.

    `pools` has the waiting gangs by their pools. `noted` has the waiting gangs for which an earlier plan found a place
    (`resuming`), `stopping` the running gangs that are being stopped.
    """

    def __init__(self, facts: gangfacts.Facts) -> None:
        self._facts = facts
        self._waiting: dict[int, plans.Gang] = {}
        self._running: dict[int, plans.Running] = {}
        self.waiting_came: list[plans.Gang] = []
        self.waiting_went: list[plans.Gang] = []
        self.running_came: list[plans.Running] = []
        self.running_went: list[plans.Running] = []
        self.pools: dict[str, dict[int, plans.Gang]] = {}
        self.noted: dict[int, plans.Gang] = {}
        self.stopping: list[plans.Running] = []

    def follow(self, snapshot: plans.Snapshot) -> None:
        waiting = {id(gang): gang for gang in snapshot.waiting}
        running = {id(job): job for job in snapshot.running}
        self.waiting_went = [gang for key, gang in self._waiting.items() if key not in waiting]
        self.waiting_came = [gang for key, gang in waiting.items() if key not in self._waiting]
        self.running_went = [job for key, job in self._running.items() if key not in running]
        self.running_came = [job for key, job in running.items() if key not in self._running]
        self._waiting, self._running = waiting, running
        for gang in self.waiting_went:
            self.noted.pop(id(gang), None)
            self.pools[gang.pool].pop(id(gang))
        for gang in self.waiting_came:
            self.pools.setdefault(gang.pool, {})[id(gang)] = gang
            if not self._facts.of(gang).plain:
                self.noted[id(gang)] = gang
        self.stopping = [job for job in snapshot.running if job.stopping]
