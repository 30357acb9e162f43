"""A workload: the jobs that arrive, and their models. Every kind of file becomes one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from oarlock.simulator.models import jobmodels
from oarlock.spec import errors, jobfile
from oarlock.spec.cluster import pools, pooltrees
from oarlock.spec.input import quantities

MOST_JOBS = 1_000_000
UNKNOWN_OWNER = "unknown"
"""The owner of jobs whose file or scenario names none."""


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """A job that is submitted `at` seconds after the beginning.

    Jobs of one `group` start their work together, wherever they are: they are the tasks of a gang that is scheduled one
    by one. `types` has the job's speed by type of GPU, relative to `job_model`; 1 for a type without an entry.
    """

    id: str
    at: float
    spec: jobfile.JobSpec
    job_model: jobmodels.JobModel
    owner: str = UNKNOWN_OWNER
    group: str = ""
    types: dict[str, float] = {}


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """`arrivals` in the order of time, with unique ids."""

    name: str
    arrivals: tuple[Arrival, ...]
    pools: tuple[pools.Pool, ...] = ()


def build(name: str, arrivals: Sequence[Arrival], pools: Sequence[pools.Pool] = ()) -> Workload:
    """Return the workload, sorted and checked.

    Raises InvalidInput if it is empty, an id is used twice, or a server would refuse the pools, or a job for its pool.
    """
    if not 0 < len(arrivals) <= MOST_JOBS:
        raise errors.InvalidInput(f"{name} has {len(arrivals)} jobs", hint=f"Between 1 and {MOST_JOBS} are simulated.")
    ids: set[str] = set()
    for one in arrivals:
        if one.id in ids:
            raise errors.InvalidInput(f"{name} has two jobs {one.id}", hint="Give each job a name of its own.")
        ids.add(one.id)
    _check_pools(pools, dict.fromkeys(one.spec.pool for one in arrivals))
    return Workload(name=name, arrivals=tuple(sorted(arrivals, key=lambda one: (one.at, one.id))), pools=tuple(pools))


def _check_pools(declared: Sequence[pools.Pool], used: Iterable[str]) -> None:
    names = [pool.name for pool in declared]
    for place, pool in enumerate(declared):
        if pool.name in names[:place]:
            raise errors.InvalidInput(
                f"two pools are called `{pool.name}`", path=f"pools[{place}]", hint="Give each a name of its own."
            )
        try:
            pooltrees.check(pool, declared, lambda _: ())
        except errors.InvalidInput as error:
            raise errors.InvalidInput(error.message, path=f"pools[{place}].{error.path}", hint=error.hint) from error
    for name in used:
        pooltrees.check_leaf(name, declared)


def groups(of: Workload) -> dict[str, tuple[str, ...]]:
    """Return, by the id of each job in a group, all jobs of the group."""
    members: dict[str, list[str]] = {}
    for one in of.arrivals:
        if one.group:
            members.setdefault(one.group, []).append(one.id)
    return {job_id: tuple(together) for together in members.values() for job_id in together}


def cut(
    workload: Workload, *, start_s: float = 0.0, end_s: float | None = None, jobs: int | None = None, scale: float = 1.0
) -> Workload:
    """Return the jobs that arrive from `start_s` to before `end_s`, of those the first `jobs`, `scale` times as often.

    The new workload begins at `start_s`.
    """
    if scale <= 0:
        raise errors.InvalidInput(f"a scale of {scale:g}", hint="1 is as recorded, 2 twice the load.")
    kept = [one for one in workload.arrivals if start_s <= one.at and (end_s is None or one.at < end_s)][:jobs]
    if not kept:
        first, last = (quantities.duration_text(workload.arrivals[place].at) for place in (0, -1))
        raise errors.InvalidInput(
            f"no job of {workload.name} arrives then: the first arrives at {first}, the last arrives at {last}",
            hint="Give another --from and --to.",
        )
    moved = [msgspec.structs.replace(one, at=(one.at - start_s) / scale) for one in kept]
    return build(workload.name, moved, workload.pools)
