"""Interface to what adds nodes to a cluster: requests for nodes, and their answers.

A request is known by its job and its number, so that it can be made and withdrawn again and again. The controller keeps
the requests in the store; a provisioner keeps nothing.
"""

from __future__ import annotations

from typing import Protocol

from oarlock.spec import resources
from oarlock.spec.cluster import provisioning


class Provisioner(Protocol):
    def lacking(self, node_class: str) -> tuple[str, ...]:
        """Return the claims of volumes that no new node of the class can mount, as far as is known now. Any thread."""
        ...

    async def answered(self) -> list[provisioning.Answered] | None:
        """Return the requests that the cluster knows; None where nothing there takes requests."""
        ...

    async def request(
        self, job: str, request: provisioning.NodeRequest, resource: resources.Resource | None = None
    ) -> None:
        """Make the request. One that is there already stays. `resource` is the job's object."""
        ...

    async def withdraw(self, job: str, number: int) -> None:
        """Take the request back. One that is not there counts as withdrawn."""
        ...

    async def tell(
        self, job: str, request: provisioning.NodeRequest, resource: resources.Resource | None = None
    ) -> None:
        """Tell people and autoscalers in the cluster's own way which nodes the job lacks. `resource` is its object."""
        ...


class Memory:
    """An autoscaler in memory. `answers` is None where it takes no requests; a test sets the answers."""

    def __init__(self, *, takes: bool = True) -> None:
        self.takes = takes
        self.requests: dict[tuple[str, int], provisioning.NodeRequest] = {}
        self.answers: dict[tuple[str, int], tuple[provisioning.Answer, str]] = {}
        self.told: list[tuple[str, dict[str, int]]] = []
        self.lacks: dict[str, tuple[str, ...]] = {}

    def lacking(self, node_class: str) -> tuple[str, ...]:
        return self.lacks.get(node_class, ())

    async def answered(self) -> list[provisioning.Answered] | None:
        if not self.takes:
            return None
        none = provisioning.Answer.NONE, ""
        return [
            provisioning.Answered(job=job, number=number, answer=answer, message=message)
            for job, number in self.requests
            for answer, message in [self.answers.get((job, number), none)]
        ]

    async def request(
        self, job: str, request: provisioning.NodeRequest, resource: resources.Resource | None = None
    ) -> None:
        self.requests.setdefault((job, request.number), request)

    async def withdraw(self, job: str, number: int) -> None:
        self.requests.pop((job, number), None)

    async def tell(
        self, job: str, request: provisioning.NodeRequest, resource: resources.Resource | None = None
    ) -> None:
        self.told.append((job, dict(request.need.nodes)))
