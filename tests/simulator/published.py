"""Schedulers as they were published, written anew for measuring the simulator: a plan that is none of ours, so that the
simulator is compared with others' figures without our policies in between.
"""

from __future__ import annotations

from typing import Any

from oarlock.spec import holdings, plans

TIRESIAS_THRESHOLD_GPU_S = 16 * 3600.0


class Placing:
    """Free devices by node. Whole gangs, one device a task, from the node with the most free ones."""

    def __init__(self, snapshot: plans.Snapshot) -> None:
        self.free = {node.name: [device.index for device in node.devices] for node in snapshot.nodes if node.ready}
        for running in snapshot.running:
            for claim in running.holdings:
                for device in claim.devices:
                    self.free[claim.node].remove(device)

    @property
    def count(self) -> int:
        return sum(map(len, self.free.values()))

    def take(self, gang: plans.Gang, size: int) -> tuple[holdings.Holding, ...]:
        (ask,) = gang.asks
        claims: list[holdings.Holding] = []
        while len(claims) < size:
            name = max(self.free, key=lambda name: (len(self.free[name]), name))
            for device in self.free[name][: size - len(claims)]:
                claims.append(
                    holdings.Holding(
                        job=gang.job,
                        attempt=0,
                        role=ask.role,
                        index=len(claims),
                        node=name,
                        amount=ask.amount,
                        devices=(device,),
                    )
                )
            self._drop(name, claims)
        return tuple(claims)

    def _drop(self, name: str, claims: list[holdings.Holding]) -> None:
        taken = {device for claim in claims if claim.node == name for device in claim.devices}
        self.free[name] = [device for device in self.free[name] if device not in taken]


def first_come(snapshot: plans.Snapshot, now: float, memo: Any) -> plans.Plan:
    """In the order of submission; who does not fit holds back those behind."""
    placing, launches = Placing(snapshot), []
    for gang in sorted(snapshot.waiting, key=lambda gang: (gang.submitted_at, gang.job)):
        size = gang.wanted[0]
        if size > placing.count or (gang.not_before or 0.0) > now:
            break
        launches.append(plans.Launch(job=gang.job, holdings=placing.take(gang, size)))
    return plans.Plan(launches=tuple(launches))
