"""The gang's members: every task's address and ports, as the barrier collected them. Each framework's environment is
made from them.
"""

from __future__ import annotations

import msgspec

from oarlock.spec import attempts, jobs, roles
from oarlock.spec.input import quantities


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One task. `ports` is its held block: process K of the task serves on `ports[K]`."""

    role: roles.RoleName
    index: int
    address: str
    ports: tuple[int, ...]
    nproc: int
    cpus_milli: int
    gpus: int
    gpu_share: float = 0.0  # of one device, for all its processes together

    def endpoint(self, process: int = 0) -> str:
        """Return HOST:PORT, with brackets around an IPv6 address."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.ports[process] if process < len(self.ports) else 0}"


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """The gang of one attempt and round."""

    job: str
    attempt: int
    round: int
    max_restarts: int
    members: tuple[Member, ...]

    def of(self, *names: roles.RoleName) -> list[Member]:
        """Return the members of these roles, in the order of the roles named, then by index."""
        return sorted(
            (member for member in self.members if member.role in names),
            key=lambda member: (names.index(member.role), member.index),
        )


def cluster(job: jobs.Job, attempt: attempts.Attempt, joins: attempts.Task | None = None) -> Cluster:
    """Return the members of the present round, and `joins` with them."""
    return Cluster(
        job=job.id,
        attempt=attempt.number,
        round=attempt.round,
        max_restarts=job.spec.max_restarts,
        members=tuple(
            _member(job, task) for task in attempt.tasks if task.part is attempts.Part.MEMBER or task is joins
        ),
    )


def _member(job: jobs.Job, task: attempts.Task) -> Member:
    role = job.spec.roles[task.role]
    return Member(
        role=task.role,
        index=task.index,
        address=task.address or "127.0.0.1",
        ports=task.ports,
        nproc=role.nproc,
        cpus_milli=quantities.cpus_milli(role.held_cpus),
        gpus=int(role.gpus),
        gpu_share=role.gpus if 0 < role.gpus < 1 else 0.0,
    )
