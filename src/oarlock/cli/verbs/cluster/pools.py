"""`oarlock pools` draws the tree of resource pools; `oarlock pool` changes it, for administrators."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from oarlock.cli import command, moments
from oarlock.cli.output import terminal
from oarlock.spec import errors

if TYPE_CHECKING:
    from oarlock.client.synchronous import clients
    from oarlock.spec import bodies
    from oarlock.spec.cluster import pools as nouns

NONE = "none"
MOST_SAMPLES = 1000


@command.verb("pools", short_help="Draw the tree of resource pools")
@command.option("--since", metavar="TIME", help="List the use and the entitlement since then, on average: 7d (ago).")
@command.json_option
@command.connected
def pools(client: clients.Client, since: str | None, as_json: bool) -> None:
    """Draw the resource pools: the used, entitled and reserved amounts of each, and its limit.

    An entitlement changes with the needs of all pools: reservations come first, the rest is divided by share.
    """
    if since is not None:
        _over_time(client, since, as_json=as_json)
        return
    found = client.pools()
    if as_json:
        terminal.json_out(found)
        return
    from oarlock.cli.output import pooltree

    for line in pooltree.lines(
        found,
        columns=terminal.columns(sys.stdout),
        unicode=terminal.speaks_unicode(sys.stdout),
        colour=terminal.wants_colour(sys.stdout),
    ):
        terminal.out(line)
    for note in found.notes:
        terminal.say(terminal.clean(note))


def _over_time(client: clients.Client, since: str, *, as_json: bool) -> None:
    found = client.samples(**moments.read(since=since), limit=MOST_SAMPLES)
    if as_json:
        terminal.json_out(found)
        return
    from oarlock.cli.output import tables
    from oarlock.display.pools import pooluse
    from oarlock.display.tables import columns

    rows = [one.cells() for one in pooluse.over(found.items)]
    tables.show(columns.POOL_USE, rows)
    if not rows:
        terminal.say("No sample of that time. The server takes one every five minutes, and keeps it for a month.")


@command.group(
    "pool",
    short_help="Create, change or remove a resource pool",
    elsewhere="`oarlock pools` draws the pools. `oarlock pool set NAME` creates or changes one.",
)
def pool() -> None:
    """Create, change or remove a resource pool, as an administrator."""


@command.verb("set", short_help="Create or change a pool")
@click.argument("name")
@command.option("--parent", metavar="POOL", help="Parent pool. `none` for a topmost pool.")
@command.option(
    "--reserve", multiple=True, metavar="RESOURCE=AMOUNT", help="Amount that the pool gets whenever it needs it."
)
@command.option("--limit", multiple=True, metavar="RESOURCE=AMOUNT", help="Amount that the pool never exceeds.")
@command.option(
    "--share",
    multiple=True,
    metavar="[RESOURCE=]NUMBER",
    show_default="1",
    help="Weight of the pool when the rest is divided.",
)
@command.option(
    "--static", multiple=True, metavar="RESOURCE", help="Keep the reservation of this resource free even while unused."
)
@command.option(
    "--policy", metavar="POLICY", help="Policy that orders the pool's jobs. `none` for the cluster's policy."
)
@command.option("--dry-run", is_flag=True, help="Tell the effects of the change, and do not make it.")
@command.json_option
@command.connected
def set_pool(
    client: clients.Client,
    name: str,
    parent: str | None,
    reserve: Sequence[str],
    limit: Sequence[str],
    share: Sequence[str],
    static: Sequence[str],
    policy: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Create the pool NAME, or change the given fields of it.

    A RESOURCE is `gpus`, `cpus` or `memory`: --reserve gpus=8 --limit gpus=16,memory=512Gi. The amount `none` removes
    one resource, and --reserve none removes all. A change is refused, with the numbers, if it does not fit into the
    tree: children together reserve at most the reservation of their parent, and no limit exceeds the parent's limit.
    """
    given: dict[str, Any] = {}
    for field, value in (("parent", parent), ("policy", policy)):
        if value is not None:
            given[field] = None if value == NONE else value
    for field, values in (("reserve", reserve), ("limit", limit)):
        if values:
            given[field] = _amounts(field, values)
    if share:
        given["share"] = _shares(share)
    if static:
        given["static"] = [] if list(static) == [NONE] else list(_parts(static))
    if dry_run:
        _preview(client.preview_pool(name, **given), as_json=as_json)
        return
    made = client.set_pool(name, **given)
    if as_json:
        terminal.json_out(made)
        return
    terminal.out(told(made))
    for note in client.pools().notes:
        terminal.say(terminal.clean(note))


def _preview(found: bodies.PoolPreview, *, as_json: bool) -> None:
    if as_json:
        terminal.json_out(found)
        return
    from oarlock.display.pools import poolpreviews

    terminal.out(told(found.pool))
    for line in (*poolpreviews.lines(found), *found.notes):
        terminal.out(terminal.clean(line))


@command.verb("rm", short_help="Remove a pool")
@click.argument("name")
@command.json_option
@command.connected
def remove(client: clients.Client, name: str, as_json: bool) -> None:
    """Remove the pool NAME. This is refused while the pool has child pools, or jobs that have not ended."""
    client.remove_pool(name)
    terminal.say(f"Removed {terminal.clean(name)}.")
    if as_json:
        terminal.json_out({"pool": name})


def told(of: nouns.Pool) -> str:
    """Return the fields of the pool: `research: reserves gpus=8, limited to gpus=16, share gpus=2`."""
    from oarlock.spec.cluster import pooltrees

    parts = [f"below {of.parent}"] if of.parent else []
    for word, amounts in (("reserves", of.reserve), ("limited to", of.limit)):
        parts += [f"{word} {_typed(amounts)}"] if amounts else []
    share = {name: pooltrees.exact(value) for name, value in of.share.items()}
    parts += [f"share {' '.join(f'{name}={value}' for name, value in share.items())}"] if of.share else []
    parts += [f"static {' '.join(of.static)}"] if of.static else []
    parts += [f"policy {of.policy}"] if of.policy else []
    return terminal.clean(f"{of.name}: {', '.join(parts) or 'no reservation, no limit'}")


def _typed(amounts: dict[str, float]) -> str:
    from oarlock.spec.cluster import pooltrees

    return " ".join(f"{resource}={pooltrees.typed(resource, value)}" for resource, value in amounts.items())


def _amounts(field: str, values: Sequence[str]) -> dict[str, str | None] | None:
    """Return the amounts by resource of texts such as `gpus=8,memory=64Gi`. None means: remove all of them."""
    parts = list(_parts(values))
    if parts == [NONE]:
        return None
    found: dict[str, str | None] = {}
    for part in parts:
        resource, equals, value = part.partition("=")
        if not equals or not value:
            raise errors.InvalidInput(
                f"{part[:40]!r} is not a resource with its amount", path=f"--{field}", hint=f"Write --{field} gpus=8."
            )
        found[resource] = None if value == NONE else value
    return found


def _shares(values: Sequence[str]) -> dict[str, str | None] | None:
    """Return the shares by resource. A number alone is the share of every resource."""
    from oarlock.spec.cluster import pools as nouns

    parts = list(_parts(values))
    plain = [part for part in parts if "=" not in part and part != NONE]
    named = _amounts("share", [part for part in parts if part not in plain])
    return named if named is None else {**{name: value for value in plain for name in nouns.RESOURCES}, **named}


def _parts(values: Sequence[str]) -> Iterator[str]:
    return (part.strip() for value in values for part in value.split(",") if part.strip())


for _verb in (set_pool, remove):
    pool.add_command(_verb)
