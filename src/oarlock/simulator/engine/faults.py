"""The faults of a simulation: nodes are lost and come back, processes fail, tasks cannot be made.

Every fault is drawn from the seed and the name of its target, never from a common stream. So one more job, or another
policy, does not change the faults of other targets, and a run can be repeated to the last byte.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence

import msgspec

from oarlock.backends import backends, fake
from oarlock.simulator.engine import agents
from oarlock.spec import errors
from oarlock.spec.cluster import nodes


class Faults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rates of faults. Mean times are of exponential distributions; infinity means never.

    A lost node is declared gone after `node_gone_s`, or when it is back before that: its processes are lost.
    `job_mtbf_s` is the mean time until the processes of an attempt fail. `launch_failures` is the share of tasks that
    cannot be made.
    """

    node_mtbf_s: float = math.inf
    node_mttr_s: float = 1800.0
    node_gone_s: float = 300.0
    job_mtbf_s: float = math.inf
    launch_failures: float = 0.0

    def __post_init__(self) -> None:
        for name in ("node_mtbf_s", "node_mttr_s", "job_mtbf_s"):
            if not getattr(self, name) > 0:
                raise errors.InvalidInput(f"{getattr(self, name)}", path=name, hint="A mean time is more than 0.")
        if not self.node_gone_s >= 0:
            raise errors.InvalidInput(f"{self.node_gone_s}", path="node_gone_s", hint="It is 0 or more seconds.")
        if not 0 <= self.launch_failures < 1:
            raise errors.InvalidInput(
                f"{self.launch_failures}", path="launch_failures", hint="A share: 0 or more, below 1."
            )


class FaultSchedule:
    """The faults of one run in the order of time (on the simulated clock, from `origin`).

    `counts` has their numbers by kind.
    """

    def __init__(self, of: Faults, seed: int, machines: Sequence[nodes.Node], origin: float) -> None:
        self.counts = {"nodes_lost": 0, "launches_failed": 0}
        self._of = of
        self._seed = seed
        self._machines = {node.name: node for node in machines}
        self._chances = {name: self._random("node", name) for name in self._machines}
        self._due: list[tuple[float, str, str]] = []
        if of.node_mtbf_s < math.inf:
            for name in self._machines:
                self._push(origin + self._lifetime_s(name), name, "lose")

    def next_at(self) -> float:
        return self._due[0][0] if self._due else math.inf

    def apply_due(self, now: float, world: fake.World, crews: agents.Agents) -> bool:
        """Apply all faults that are due. Return whether there was one."""
        applied = False
        while self.next_at() <= now:
            at, name, change = heapq.heappop(self._due)
            applied = True
            if change == "lose":
                self.counts["nodes_lost"] += 1
                world.lose(name)
                crews.lose(name)
                back_at = at + self._chances[name].expovariate(1.0 / self._of.node_mttr_s)
                self._push(min(back_at, at + self._of.node_gone_s), name, "gone")
                self._push(back_at, name, "return")
            elif change == "gone":
                world.remove(name)
            else:
                world.add(self._machines[name])
                self._push(at + self._lifetime_s(name), name, "lose")
        return applied

    def fails_after(self, job: str, attempt: int) -> float:
        """Return the seconds after which the processes of this attempt fail if they are still running."""
        if self._of.job_mtbf_s == math.inf:
            return math.inf
        return self._random("process", job, attempt).expovariate(1.0 / self._of.job_mtbf_s)

    def launch_error(self, launch: backends.TaskLaunch) -> str:
        key = launch.key
        if not self._of.launch_failures:
            return ""
        chance = self._random("launch", key.job, key.attempt, key.role, key.index)
        if chance.random() >= self._of.launch_failures:
            return ""
        self.counts["launches_failed"] += 1
        return f"{key.role}-{key.index} could not be bound"

    def _lifetime_s(self, name: str) -> float:
        return self._chances[name].expovariate(1.0 / self._of.node_mtbf_s)

    def _push(self, at: float, name: str, change: str) -> None:
        heapq.heappush(self._due, (at, name, change))

    def _random(self, *of: object) -> random.Random:
        return random.Random("/".join(map(str, (self._seed, *of))))
