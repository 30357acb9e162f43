"""Capabilities of a backend as words, and the refusal of jobs that need other capabilities.

The composition root tells the capabilities of its backend. Each field of a job file either works or is refused here by
its path: no field is accepted and then ignored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import StrEnum

from oarlock.spec import errors, jobfile


class Capability(StrEnum):
    IMAGE = "image"  # tasks run in a container image
    VOLUMES = "volumes"  # cluster volumes can be mounted
    SIZES = "sizes"  # T-shirt sizes are declared
    ELASTIC = "elastic"  # extras above a role's `min`
    GPU_SHARES = "gpu-shares"  # several tasks on one device
    TOPOLOGY = "topology"  # nodes tell their rack, zone or switch
    PARAMETER_SERVERS = "parameter-servers"  # the training library's strategy `ps`
    AUTOMATIC_STRATEGY = "automatic-strategy"  # the training library chooses its strategy
    IN_PLACE = "in-place"  # tasks can run in the user's own directory


LOCAL: frozenset[Capability] = frozenset(
    {Capability.SIZES, Capability.ELASTIC, Capability.GPU_SHARES, Capability.IN_PLACE}
)
"""Capabilities of the local backend."""


def refuse(spec: jobfile.JobSpec, capabilities: Collection[str], backend: str) -> None:
    """Raise Unsupported for the first field that needs a missing capability."""
    for capability, path, hint in _wants(spec):
        if capability not in capabilities:
            raise errors.Unsupported(f"The {backend} backend does not support `{path}`.", path=path, hint=hint)


def _wants(spec: jobfile.JobSpec) -> Iterator[tuple[Capability, str, str]]:
    if spec.image is not None:
        yield Capability.IMAGE, "image", "Leave it out: tasks run in the environment from which `oarlock` was called."
    if spec.volumes:
        yield (
            Capability.VOLUMES,
            "volumes[0]",
            "Leave it out, and read the path itself: tasks see the files of this machine.",
        )
    if spec.size is not None:
        yield Capability.SIZES, "size", "Set roles.worker.cpus, .memory and .gpus instead."
    if spec.strategy.kind is jobfile.StrategyKind.PS:
        yield Capability.PARAMETER_SERVERS, "strategy.kind", "Use `allreduce`, or `none` with the framework's own."
    if spec.strategy.kind is jobfile.StrategyKind.AUTO:
        yield Capability.AUTOMATIC_STRATEGY, "strategy.kind", "Use `allreduce`."
    if spec.strategy.compression is jobfile.Compression.AUTO:
        yield Capability.AUTOMATIC_STRATEGY, "strategy.compression", "Use `none`, or name one."
    if spec.topology is not None and spec.topology.same is not jobfile.Domain.NODE:
        yield Capability.TOPOLOGY, "topology.same", "Use `node`, or leave topology out."
    for name, role in spec.roles.items():
        if role.min is not None and role.min < role.count:
            yield Capability.ELASTIC, f"roles.{name}.min", "Leave it out: all `count` tasks start together."
        if role.max is not None and role.max > role.count:
            yield Capability.ELASTIC, f"roles.{name}.max", "Leave it out: exactly `count` tasks run."
        if role.gpus != int(role.gpus):
            yield Capability.GPU_SHARES, f"roles.{name}.gpus", "Ask for whole GPUs."
