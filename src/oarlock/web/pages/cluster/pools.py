"""The tree of pools with its bars; for administrators the change of a pool, which shows its effects before it is made.

A form holds the whole pool. A resource that is missing in it is removed from the pool, one that stands there as it was
shown is left alone, and the version that the form was made from goes with it: a change that another administrator made
meanwhile is shown, and not overwritten. A change is applied only as its effects were shown: a form that was
edited since then shows them first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette import responses

from oarlock.display.pools import poolpreviews, pooluse
from oarlock.spec import bodies, errors
from oarlock.spec.access import users
from oarlock.spec.cluster import pools, pooltrees
from oarlock.web import routing
from oarlock.web.access import visits
from oarlock.web.drawing import poolday, poolscale
from oarlock.web.rendering import times
from oarlock.web.updates import topics

SPANS = {"1d": 86_400.0, "7d": 7 * 86_400.0, "30d": 30 * 86_400.0}
AMOUNTS = ("reserve", "limit", "share")
FIELDS = ("parent", "policy", *AMOUNTS, "static")


async def show(visit: visits.Visit) -> routing.Filled:
    tree = await visit.client.pools()
    span = visit.asked("span") if visit.asked("span") in SPANS else "1d"
    parents = {state.pool.name: state.pool.parent for state in tree}
    kinds = poolscale.resources(tree.items, tree.capacity)
    scales = {kind: poolscale.scale(tree.items, tree.capacity, kind) for kind in kinds}
    return routing.Filled(
        template="cluster/pools.html",
        facts={
            "rows": [
                {
                    "state": state,
                    "depth": _depth(state.pool.name, parents),
                    "bars": [poolscale.bar(state, kind, scales[kind]) for kind in kinds],
                }
                for state in tree
            ],
            "notes": tree.notes,
            "topics": (topics.NODES, topics.POOLS),
            "width": poolscale.WIDTH,
            "span": span,
            "spans": tuple(SPANS),
            "past": await _past(visit, SPANS[span]),
            "picture": (poolday.WIDTH, poolday.HEIGHT),
            "admin": visit.may(users.Right.ADMIN),
        },
    )


async def _past(visit: visits.Visit, span_s: float) -> list[dict[str, Any]]:
    """Return the use of each pool over time, drawn on one scale, with its figures."""
    until = times.steady(visit.server.now, span_s / poolday.WIDTH)
    found = await visit.client.samples(since=until - span_s, until=until, limit=poolday.WIDTH)
    uses = pooluse.over(found.items)
    most = max((max(*one.used, *one.entitled) for one in uses), default=0.0)
    return [
        {"use": one, "cells": one.cells(), "picture": poolday.draw(one, found.since, found.until, most)} for one in uses
    ]


async def edit(visit: visits.Visit) -> routing.Filled:
    """Show the form of a pool, empty for a new one."""
    tree = await visit.client.pools()
    name = visit.asked("pool")
    found = next((state.pool for state in tree if state.pool.name == name), pools.Pool(name=name))
    return _form(found.name, found.version, _typed(found))


async def change(visit: visits.Visit) -> routing.Filled | responses.Response:
    """Show the effects of a change, or make it if these are shown. A refused one comes back as it was typed."""
    form = await visit.form()
    name, typed = visits.one(form, "pool").strip(), {field: visits.one(form, field).strip() for field in FIELDS}
    version = visits.one(form, "version")
    number = int(version) if version.isascii() and version.isdigit() and len(version) < 18 else 0
    try:
        tree = await visit.client.pools()
        shown = next((_typed(one.pool) for one in tree if (one.pool.name, one.pool.version) == (name, number)), {})
        fields = {**_fields(typed, shown), "version": number}
        applied = visits.one(form, "action") == "apply"
        if applied and visits.one(form, "previewed") == _digest(name, number, typed):
            await visit.client.set_pool(name, **fields)
            return routing.to("/pools")
        return _form(name, number, typed, preview=await visit.client.preview_pool(name, **fields), unseen=applied)
    except errors.VersionMismatch as error:
        present = next((state.pool for state in await visit.client.pools() if state.pool.name == name), None)
        return _form(name, present.version if present is not None else 0, typed, error=error, present=present)
    except (errors.InvalidInput, errors.Conflict) as error:
        return _form(name, number, typed, error=error)


async def ask_removal(visit: visits.Visit) -> routing.Filled:
    """Ask whether to remove a pool, and tell what is in the way. Raises NotFound."""
    tree = await visit.client.pools()
    name = visit.asked("pool")
    state = next((state for state in tree if state.pool.name == name), None)
    if state is None:
        raise errors.NotFound(f"There is no pool {name[:63]!r}.", hint="Start from the pools.")
    below = sorted(one.pool.name for one in tree if one.pool.parent == name)
    return _removal(state, below)


async def remove(visit: visits.Visit) -> routing.Filled | responses.Response:
    """Remove a pool that has no job and no pool below it. A refusal is told beside what is in the way."""
    form = await visit.form()
    name = visits.one(form, "pool")
    try:
        await visit.client.remove_pool(name)
        return routing.to("/pools")
    except errors.Conflict as error:
        tree = await visit.client.pools()
        state = next((state for state in tree if state.pool.name == name), None)
        if state is None:
            raise
        return _removal(state, sorted(one.pool.name for one in tree if one.pool.parent == name), error)


def _removal(state: bodies.PoolState, below: list[str], error: errors.OarlockError | None = None) -> routing.Filled:
    name = state.pool.name
    facts = {
        "title": f"Remove the pool {name}",
        "name": name,
        "given": {field: text for field, text in _typed(state.pool).items() if text},
        "running": state.running,
        "waiting": state.waiting,
        "below": below,
        "always": name == pools.DEFAULT,
        "error": error,
        "command": f"oarlock pool rm {name}",
    }
    return routing.Filled(
        template="cluster/poolremoval.html", facts=facts, status=error.status if error is not None else 200
    )


def _form(
    name: str,
    version: int,
    typed: Mapping[str, str],
    *,
    preview: bodies.PoolPreview | None = None,
    error: errors.OarlockError | None = None,
    present: pools.Pool | None = None,
    unseen: bool = False,
) -> routing.Filled:
    """Return the form. `unseen`: the change was to be applied, but other effects were shown than it has."""
    facts: dict[str, Any] = {
        "name": name,
        "version": version,
        "typed": typed,
        "effects": [*poolpreviews.lines(preview), *preview.notes] if preview is not None else [],
        "error": error,
        "present": _typed(present) if present is not None else {},
        "previewed": _digest(name, version, typed) if preview is not None else "",
        "unseen": unseen,
        "command": _command(name, typed) if preview is not None else "",
    }
    return routing.Filled(template="cluster/pool.html", facts=facts, status=error.status if error is not None else 200)


def _digest(name: str, version: int, typed: Mapping[str, str]) -> str:
    """Return the digest of a form: two with the same digest make the same change."""
    return hashlib.sha256(msgspec.json.encode([name, version, [typed[field] for field in FIELDS]])).hexdigest()


def _typed(pool: pools.Pool) -> dict[str, str]:
    """Return the fields as they are typed: `gpus=8, memory=64Gi`."""
    amounts = {
        field: ", ".join(f"{name}={_amount(field, name, value)}" for name, value in getattr(pool, field).items())
        for field in AMOUNTS
    }
    return {"parent": pool.parent or "", "policy": pool.policy or "", **amounts, "static": ", ".join(pool.static)}


def _amount(field: str, resource: str, value: float) -> str:
    return pooltrees.exact(value) if field == "share" else pooltrees.typed(resource, value)


def _fields(typed: Mapping[str, str], shown: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of the change, without the amounts that are as they were shown. Raises InvalidInput."""
    return {
        "parent": typed["parent"] or None,
        "policy": typed["policy"] or None,
        **{field: _amounts(field, typed[field], shown.get(field, "")) for field in AMOUNTS},
        "static": tuple(_parts(typed["static"])),
    }


def _amounts(field: str, text: str, shown: str) -> dict[str, str | None]:
    """Return the amount of each resource that has changed, None for those that are not in the text."""
    same = set(_parts(shown))
    found: dict[str, str | None] = dict.fromkeys(pools.RESOURCES)
    for part in _parts(text):
        resource, equals, value = part.partition("=")
        if not equals or not value.strip():
            raise errors.InvalidInput(f"{part[:40]!r} is not a resource with its amount", path=field, hint="gpus=8")
        if part in same:
            found.pop(resource, None)
        else:
            found[resource.strip()] = value.strip()
    return found


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _command(name: str, typed: Mapping[str, str]) -> str:
    """Return the command that does the same."""
    flags = {"parent": "--parent", "policy": "--policy", "reserve": "--reserve", "limit": "--limit"}
    flags |= {"share": "--share", "static": "--static"}
    told = [f"{flag} {typed[field].replace(' ', '') or 'none'}" for field, flag in flags.items()]
    return f"oarlock pool set {name} {' '.join(told)}"


def _depth(name: str, parents: Mapping[str, str | None]) -> int:
    """Return the number of pools above the pool."""
    above = [name]
    while (parent := parents.get(above[-1])) is not None and parent in parents and parent not in above:
        above.append(parent)
    return len(above) - 1


PAGES: tuple[routing.Page, ...] = (
    routing.Page(path="/pools", title="Pools", handler=show, key="p", live=True),
    routing.Page(path="/pools/edit", title="Pool", handler=edit, right=users.Right.ADMIN),
    routing.Page(path="/pools/edit", handler=change, method="POST", right=users.Right.ADMIN),
    routing.Page(path="/pools/remove", title="Remove a pool", handler=ask_removal, right=users.Right.ADMIN),
    routing.Page(path="/pools/remove", handler=remove, method="POST", right=users.Right.ADMIN),
)
