"""The validity of a tree of pools, checked before a pool is written, removed, or given a job.

A pool's reservation is within its limit and, together with its neighbours', within its parent's; its limit is within
the limit of the nearest ancestor that has one. Jobs live in leaves, so a pool with jobs of its own becomes no parent
and cannot vanish. The topmost pools' reservations may exceed the present capacity: nodes come and go, and reservations
are then kept in proportion.

A refusal gives the numbers, and the command that would let the change pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal

from oarlock.spec import errors
from oarlock.spec.cluster import pools
from oarlock.spec.hints import suggestions
from oarlock.spec.input import quantities, validation

MAX_POOLS = 1000
MAX_DEPTH = 10
NO_POOL = "none"
"""The word that means none where a pool is named: so no pool has this name."""

_NAMED = 3
_SLACK = 1e-9

Jobs = Callable[[str], Sequence[str]]
"""The names of the jobs in a pool that are not over, or enough of them."""


def check(pool: pools.Pool, declared: Iterable[pools.Pool], jobs: Jobs) -> None:
    """Raise InvalidInput or Conflict unless `pool`, new or changed, fits among those that are declared."""
    others = {one.name: one for one in declared if one.name != pool.name}
    if pool.name == NO_POOL:
        raise errors.InvalidInput(
            f"`{NO_POOL}` is not a valid name of a pool.", path="name", hint="Choose another one."
        )
    validation.check_name(pool.name, "name")
    if len(others) >= MAX_POOLS:
        raise errors.InvalidInput(f"There are {len(others)} pools.", hint=f"At most {MAX_POOLS} can be: remove one.")
    after = {**others, pool.name: pool}
    if pool.parent is not None:
        _check_parent(pool, pool.parent, after, jobs)
    for resource in pools.RESOURCES:
        _check_own(pool, resource)
        _check_reservations(pool, resource, after)
        _check_limits(pool, resource, after)


def check_removal(name: str, declared: Iterable[pools.Pool], jobs: Jobs) -> None:
    """Raise NotFound or Conflict unless the pool can vanish."""
    known = {one.name: one for one in declared}
    if name == pools.DEFAULT:
        raise errors.Conflict(
            f"`{name}` is the pool of jobs that name none: it is always there.",
            hint=f"To take away what it was given: {_command(name, 'reserve')} --limit none --share none",
        )
    if name not in known:
        raise unknown(name, known)
    children = sorted(one.name for one in known.values() if one.parent == name)
    if children:
        raise errors.Conflict(
            f"{len(children)} pool{'s lie' if len(children) > 1 else ' lies'} below `{name}`: {_listed(children)}.",
            hint=f"Remove {'those' if len(children) > 1 else 'that one'} first: oarlock pool rm {children[0]}",
        )
    if found := jobs(name):
        raise errors.Conflict(
            f"{_jobs_text(found)} in `{name}`: {_listed(found)}.",
            hint=f"Wait for their end, or cancel them: oarlock cancel {found[0]}",
        )


def check_leaf(name: str, declared: Iterable[pools.Pool]) -> None:
    """Raise InvalidInput unless a job may be given to the pool `name`."""
    known = {one.name: one for one in declared}
    if name not in known and name != pools.DEFAULT:
        missing = unknown(name, known)
        raise errors.InvalidInput(missing.message, path="pool", hint=missing.hint)
    leaves = sorted(_leaves(name, known))
    if leaves != [name]:
        raise errors.InvalidInput(
            f"`{name}` is divided into other pools, and jobs go to those.",
            path="pool",
            hint=f"Below it there {'are' if len(leaves) > 1 else 'is'}: {', '.join(leaves)}.",
        )


def unknown(name: str, known: Iterable[str]) -> errors.NotFound:
    names = sorted({pools.DEFAULT, *known})
    near = suggestions.nearest(name, names)
    hint = f"Did you mean `{near}`?" if near else f"There {'are' if len(names) > 1 else 'is'}: {_listed(names, 20)}."
    return errors.NotFound(f"There is no pool `{name[:63]}`.", hint=hint)


def line(name: str, known: Mapping[str, pools.Pool]) -> list[str]:
    """Return the pool and those above it; ends where it would go round in a circle."""
    found = [name]
    while found[-1] in known and (above := known[found[-1]].parent) in known and above not in found:
        found.append(str(above))
    return found


def typed(resource: str, value: float) -> str:
    """Return an amount as one types it: `8`, `0.5`, `64Gi`. It reads back as the same amount."""
    if resource == "memory" and value:
        for unit, size in (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
            if value % (size / 4) == 0 and value >= size:
                return f"{exact(value / size)}{unit}"
    return exact(value)


def exact(value: float) -> str:
    """Return the number with all its digits and without an exponent: `8`, `0.5`, `1234567`."""
    return f"{value:.0f}" if value == int(value) else format(Decimal(repr(value)), "f")


def shown(resource: str, value: float) -> str:
    """Return an amount as one says it: `8 GPUs`, `0.5 CPUs`, `64 GiB`; none for nothing."""
    if not value:
        return "none"
    if resource == "memory":
        return quantities.memory_text(value)
    return f"{value:,.10g} {'CPU' if resource == 'cpus' else 'GPU'}{'' if value == 1 else 's'}"


def _check_parent(pool: pools.Pool, parent: str, after: Mapping[str, pools.Pool], jobs: Jobs) -> None:
    if parent == pools.DEFAULT:
        raise errors.InvalidInput(
            f"`{parent}` is the pool of jobs that name none: it stays a leaf.",
            path="parent",
            hint="Put it below another pool, or below none.",
        )
    if parent == pool.name:
        raise errors.InvalidInput(
            f"`{parent}` cannot lie below itself.", path="parent", hint="Put it below another pool, or below none."
        )
    validation.check_name(parent, "parent")
    if parent not in after:
        missing = unknown(parent, after.keys() - {pools.DEFAULT, pool.name})
        raise errors.InvalidInput(missing.message, path="parent", hint=f"{missing.hint} {_make(parent)}")
    above = line(parent, after)
    if pool.name in above:
        circle = " below ".join(f"`{name}`" for name in above[: above.index(pool.name) + 1])
        raise errors.InvalidInput(
            f"`{pool.name}` cannot lie below `{parent}`: that would be {circle}, in a circle.",
            path="parent",
            hint="Put it below none, or move the other one first: oarlock pool set NAME --parent none",
        )
    depth = max(len(line(name, after)) for name in _under(pool.name, after))
    if depth > MAX_DEPTH:
        raise errors.InvalidInput(
            f"That would be a tree of {depth} levels.", path="parent", hint=f"At most {MAX_DEPTH} can be."
        )
    siblings = any(one.parent == parent for one in after.values() if one.name != pool.name)
    found = () if siblings else jobs(parent)
    if found:
        raise errors.Conflict(
            f"{_jobs_text(found)} in `{parent}` itself ({_listed(found)}), and jobs live in leaves.",
            path="parent",
            hint="Wait for their end, cancel them, or put the new pool beside it.",
        )


def _check_own(pool: pools.Pool, resource: str) -> None:
    reserve, limit = pool.reserve.get(resource, 0.0), pool.limit.get(resource)
    if limit is not None and _over(reserve, limit):
        raise errors.InvalidInput(
            f"`{pool.name}` would reserve {shown(resource, reserve)} and be limited to {shown(resource, limit)}.",
            path=f"reserve.{resource}",
            hint=f"Reserve {shown(resource, limit)} at most, or raise the limit: "
            f"{_command(pool.name, 'limit', resource, reserve)}",
        )


def _check_reservations(pool: pools.Pool, resource: str, after: Mapping[str, pools.Pool]) -> None:
    own = pool.reserve.get(resource, 0.0)
    if pool.parent is not None:
        above = after[pool.parent].reserve.get(resource, 0.0)
        others = _reservations(pool.parent, resource, after, without=pool.name)
        together = own + sum(others.values())
        if own and _over(together, above):
            beside = f" beside {_told(resource, others)}" if others else ""
            raise errors.InvalidInput(
                f"`{pool.name}` would reserve {shown(resource, own)}{beside}, "
                f"and `{pool.parent}` above it reserves {shown(resource, above)}.",
                path=f"reserve.{resource}",
                hint=f"Reserve {shown(resource, max(0.0, above - sum(others.values())))} here, or more there first: "
                f"{_command(pool.parent, 'reserve', resource, together)}",
            )
    below = _reservations(pool.name, resource, after)
    together = sum(below.values())
    if _over(together, own):
        most = max(below, key=lambda name: (below[name], name))
        raise errors.InvalidInput(
            f"`{pool.name}` would reserve {shown(resource, own)}, and the pools below it reserve "
            f"{shown(resource, together)}: {_told(resource, below)}.",
            path=f"reserve.{resource}",
            hint=f"Reserve {shown(resource, together)} here at least, or less there first: "
            f"{_command(most, 'reserve', resource, max(0.0, below[most] - (together - own)))}",
        )


def _check_limits(pool: pools.Pool, resource: str, after: Mapping[str, pools.Pool]) -> None:
    """Check that every limit is within the next one above it, as far as `pool` is one of the two."""
    for name in _under(pool.name, after):
        limits = [one for one in line(name, after) if resource in after[one].limit]
        if len(limits) < 2 or limits[0] != name:
            continue
        lower, upper = (after[one].limit[resource] for one in limits[:2])
        if not _over(lower, upper):
            continue
        path = f"limit.{resource}"
        if name == pool.name:
            raise errors.InvalidInput(
                f"`{name}` would be limited to {shown(resource, lower)}, and `{limits[1]}` above it to "
                f"{shown(resource, upper)}.",
                path=path,
                hint=f"Limit it to {shown(resource, upper)} at most, or raise that one first: "
                f"{_command(limits[1], 'limit', resource, lower)}",
            )
        raise errors.InvalidInput(
            f"`{limits[1]}` would be limited to {shown(resource, upper)}, and `{name}` below it to "
            f"{shown(resource, lower)}.",
            path=path if limits[1] == pool.name else "parent",
            hint=f"Limit it to {shown(resource, lower)} at least, or lower that one first: "
            f"{_command(name, 'limit', resource, upper)}",
        )


def _reservations(parent: str, resource: str, known: Mapping[str, pools.Pool], without: str = "") -> dict[str, float]:
    """Return the reservation of each child that has one."""
    return {
        one.name: one.reserve[resource]
        for one in known.values()
        if one.parent == parent and one.name != without and one.reserve.get(resource)
    }


def _under(name: str, known: Mapping[str, pools.Pool]) -> list[str]:
    """Return the pool and all that lie below it."""
    return [one for one in known if name in line(one, known)] or [name]


def _leaves(name: str, known: Mapping[str, pools.Pool]) -> Iterator[str]:
    parents = {one.parent for one in known.values()}
    return (one for one in _under(name, known) if one not in parents)


def _over(value: float, bound: float) -> bool:
    return value > bound * (1 + _SLACK)


def _told(resource: str, of: Mapping[str, float]) -> str:
    """Return `vision 16 GPUs, speech 8 GPUs and 2 more`: those that reserve most."""
    order = sorted(of, key=lambda name: (-of[name], name))
    return _listed([f"{name} {shown(resource, of[name])}" for name in order])


def _listed(names: Sequence[str], most: int = _NAMED) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _jobs_text(found: Sequence[str]) -> str:
    return "There is 1 job" if len(found) == 1 else f"There are {len(found)} jobs"


def _make(name: str) -> str:
    return f"Or make it first: oarlock pool set {name[:63]}"


def _command(pool: str, field: str, resource: str = "", value: float = 0.0) -> str:
    given = f"{resource}={typed(resource, value)}" if resource else "none"
    return f"oarlock pool set {pool} --{field} {given}"
