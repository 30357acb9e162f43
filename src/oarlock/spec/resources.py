"""The custom resources of Oarlock in a Kubernetes cluster: the objects as they are read, and their status.

An OarlockJob has the fields of a job file in `spec`, and the state of its job in `status`. Its UID names it: a later
object of the same name is another one.
"""

from __future__ import annotations

from typing import Any

import msgspec

GROUP, VERSION = "oarlock.dev", "v1alpha1"
API = f"/apis/{GROUP}/{VERSION}"
MANAGED_BY = "app.kubernetes.io/managed-by"
INSTALLATION = f"{GROUP}/installation"
"""The label that names the installation of an object, where several share a cluster."""


class Resource(msgspec.Struct, frozen=True):
    """The OarlockJob of a job, by which the job was submitted or which was made for it. `cluster` is the identity of
    its cluster, and `definition` that of the definition of OarlockJob, None where the server may not read it.
    """

    namespace: str
    name: str
    uid: str
    cluster: str | None = None
    definition: str | None = None


class Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of an object, written as Kubernetes writes it: `observedGeneration`."""


class Meta(Part, frozen=True):
    """The metadata of an object. `generation` grows with each change of the spec."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] = {}
    deletion_timestamp: str | None = None


class Condition(Part, frozen=True, omit_defaults=True):
    """A fact about the object: `status` is `True` or `False`, `reason` one word, `message` a sentence.

    Empty fields are left out: some builds of Kubernetes 1.20 take an empty text for `null`, and refuse it.
    """

    type: str
    status: str
    reason: str
    message: str = ""
    observed_generation: int = 0
    last_transition_time: str = ""


class JobStatus(Part, frozen=True):
    """The job of an OarlockJob. Its id, its phase, its workers that run, of those that it has or asks for, and why it
    waits, stops or has ended. `generation` and `halt` are those of the spec that was last applied to the job.
    """

    job: str | None = None
    phase: str | None = None
    workers: str | None = None
    reason: str | None = None
    pool: str | None = None
    priority: int | None = None
    attempt: int | None = None
    restarts: int | None = None
    exit_code: int | None = None
    started_at: str | None = None
    ended_at: str | None = None
    halt: bool | None = None
    observed_generation: int | None = None
    conditions: tuple[Condition, ...] = ()

    def condition(self, name: str) -> Condition | None:
        return next((one for one in self.conditions if one.type == name), None)


class PoolStatus(Part, frozen=True):
    """The pool of an OarlockPool, with all below it: amounts by resource (devices, cores, bytes), and jobs.

    `version` is that of the pool, and `observed_generation` that of the object, when both were last the same. They
    count for the installation and the database of this status alone.
    """

    held: dict[str, float] = {}
    entitlement: dict[str, float] = {}
    limit: dict[str, float] = {}
    running: int = 0
    waiting: int = 0
    installation: str | None = None
    database: str | None = None
    version: int | None = None
    observed_generation: int | None = None
    conditions: tuple[Condition, ...] = ()

    def condition(self, name: str) -> Condition | None:
        return next((one for one in self.conditions if one.type == name), None)


class OarlockPool(msgspec.Struct, frozen=True, kw_only=True):
    """An object of the cluster, in no namespace. Anything may stand in `spec` and `status`."""

    metadata: Meta
    spec: Any = None
    status: Any = None

    def told(self) -> PoolStatus:
        """Return the status: an empty one where there is none, or none that can be read."""
        try:
            return msgspec.convert(self.status or {}, PoolStatus)
        except msgspec.ValidationError:
            return PoolStatus()

    def installation(self) -> str | None:
        """Return the installation that serves the object; None where it is new. The label hands it to another one."""
        return self.metadata.labels.get(INSTALLATION) or self.told().installation


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An Event of an object. `number` tells it from the object's others, so that a repeated one is the same."""

    number: int
    at: str
    reason: str
    message: str
    warning: bool = False


class OarlockJob(msgspec.Struct, frozen=True, kw_only=True):
    """An object of the cluster. Anything may stand in `spec` and `status`: both are read where they are used."""

    metadata: Meta
    spec: Any = None
    status: Any = None

    def told(self) -> JobStatus:
        """Return the status: an empty one where there is none, or none that can be read."""
        try:
            return msgspec.convert(self.status or {}, JobStatus)
        except msgspec.ValidationError:
            return JobStatus()
