"""T-shirt sizes: CPUs and memory of a task beside its GPUs, by the GPUs' type.

A GPU that waits for its CPUs is wasted, and so are CPUs without work: `size: 2-v100` asks for the CPUs and memory that
keep two V100 busy. The rows for K80, P100 and V100 are those that FfDL published (Jayaram et al., "FfDL: A Flexible
Multi-tenant Deep Learning Platform", Middleware '19, the table of recommended sizes), found by raising a learner's CPUs
and memory until its images per second grew no more. The other rows are ours: larger counts of those types by doubling;
later types by the share of each GPU in the machines that are sold with it, a little less, so that a machine can be
filled.
"""

from __future__ import annotations

import re

import msgspec

from oarlock.spec import errors, jobfile, roles
from oarlock.spec.hints import suggestions

COMPUTING = frozenset({roles.RoleName.WORKER, roles.RoleName.CHIEF})
"""The roles that a size applies to; parameter servers and evaluators keep their amounts of the job file."""


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """The resources of one task."""

    gpus: int
    gpu_type: str
    cpus: int
    memory_gib: int
    source: str  # `FfDL`, or `ours`

    @property
    def name(self) -> str:
        return f"{self.gpus}-{self.gpu_type}"

    @property
    def memory(self) -> str:
        """As a job file writes it."""
        return f"{self.memory_gib}Gi"


_PUBLISHED = (
    # GPUs, type, CPUs, GiB
    (1, "k80", 4, 24),
    (2, "k80", 8, 48),
    (4, "k80", 16, 96),
    (1, "p100", 8, 24),
    (2, "p100", 16, 48),
    (1, "v100", 26, 24),
    (2, "v100", 42, 48),
)
_DOUBLED = ((8, "k80", 32, 192), (4, "p100", 32, 96), (4, "v100", 84, 96), (8, "v100", 168, 192))
_BY_MACHINE = (
    # type, CPUs and GiB for each GPU
    ("t4", 7, 28),
    ("l4", 7, 28),
    ("a10g", 7, 28),
    ("l40s", 22, 180),
    ("a100", 11, 80),
    ("h100", 22, 220),
    ("h200", 22, 220),
    ("b200", 22, 220),
)


def _rows() -> list[Size]:
    rows = [
        Size(gpus=gpus, gpu_type=kind, cpus=cpus, memory_gib=gib, source=source)
        for source, table in (("FfDL", _PUBLISHED), ("ours", _DOUBLED))
        for gpus, kind, cpus, gib in table
    ]
    types = list(dict.fromkeys(row.gpu_type for row in rows))
    rows.sort(key=lambda row: (types.index(row.gpu_type), row.gpus))
    return rows + [
        Size(gpus=gpus, gpu_type=kind, cpus=cpus * gpus, memory_gib=gib * gpus, source="ours")
        for kind, cpus, gib in _BY_MACHINE
        for gpus in (1, 2, 4, 8)
    ]


TABLE: dict[str, Size] = {row.name: row for row in _rows()}
"""By name, by type and number of GPUs."""


def find(name: str) -> Size:
    """Return the size of that name. Raise InvalidInput, with the nearest name that there is."""
    found = TABLE.get(name.strip().lower())
    if found is None:
        raise errors.InvalidInput(f"{name[:60]!r} is not a size", path="size", hint=_nearest(name.strip().lower()))
    return found


def filled(spec: jobfile.JobSpec) -> jobfile.JobSpec:
    """Return the job with the amounts of its size, where the job file gives none; without a size, `spec` itself."""
    if spec.size is None:
        return spec
    size = find(spec.size)
    told = {name: _filled(role, size) if name in COMPUTING else role for name, role in spec.roles.items()}
    return msgspec.structs.replace(spec, roles=told)


def _filled(role: jobfile.Role, size: Size) -> jobfile.Role:
    return msgspec.structs.replace(
        role,
        cpus=size.cpus if role.cpus is None else role.cpus,
        memory=size.memory if role.memory is None else role.memory,
        gpus=size.gpus if role.gpus == 0 else role.gpus,
        gpu_type=role.gpu_type or (size.gpu_type,),
    )


def _nearest(name: str) -> str:
    """Return another count of the same GPU, else the size with the nearest spelling."""
    kinds = {size.gpu_type for size in TABLE.values()}
    kind = next((word for word in re.split(r"[^a-z0-9]+", name) if word in kinds), None)
    if kind is not None:
        return f"There are {', '.join(row.name for row in TABLE.values() if row.gpu_type == kind)}."
    near = suggestions.nearest(name, TABLE)
    return f"Did you mean `{near}`? `oarlock sizes` lists them." if near else "`oarlock sizes` lists them."
