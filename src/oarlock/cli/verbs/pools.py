"""`oarlock pools` draws the tree of resource pools; `oarlock pool` changes it, for administrators."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from oarlock.cli import command
from oarlock.cli.output import terminal
from oarlock.spec import errors

if TYPE_CHECKING:
    from oarlock.client.synchronous import client as clients
    from oarlock.spec import pools as nouns

NONE = "none"


@command.verb("pools", short_help="Draw the tree of resource pools")
@command.json_option
@command.connected
def pools(client: clients.Client, as_json: bool) -> None:
    """Draw the resource pools: what each uses, is entitled to, reserves and is limited to.

    What a pool is entitled to changes with what all of them want: reservations first, the rest by share.
    """
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


@command.group(
    "pool",
    short_help="Make, change or remove a resource pool",
    elsewhere="`oarlock pools` draws the pools there are; `oarlock pool set NAME` makes or changes one.",
)
def pool() -> None:
    """Make, change or remove a resource pool, for administrators."""


@command.verb("set", short_help="Make a pool, or change it")
@click.argument("name")
@command.option("--parent", metavar="POOL", help="The pool that it lies below; `none`: it is topmost.")
@command.option("--reserve", multiple=True, metavar="RESOURCE=AMOUNT", help="What is its own whenever it wants it.")
@command.option("--limit", multiple=True, metavar="RESOURCE=AMOUNT", help="What it never exceeds.")
@command.option("--share", multiple=True, metavar="[RESOURCE=]NUMBER", help="Its part of what is left; else 1.")
@command.option("--static", multiple=True, metavar="RESOURCE", help="Keep its reservation of this, wanted or not.")
@command.option("--policy", metavar="POLICY", help="What orders its jobs; `none`: the cluster's policy.")
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
    as_json: bool,
) -> None:
    """Make the pool NAME, or change it: what is not given stays as it is.

    A RESOURCE is `gpus`, `cpus` or `memory`: --reserve gpus=8 --limit gpus=16,memory=512Gi. The amount `none` takes one
    away, and --reserve none all of them. It is refused, with the numbers, where the tree would not add up: what
    children reserve is within what their parent does, and no limit exceeds that of the pool above.
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
    made = client.set_pool(name, **given)
    if as_json:
        terminal.json_out(made)
        return
    terminal.out(told(made))
    for note in client.pools().notes:
        terminal.say(terminal.clean(note))


@command.verb("rm", short_help="Remove a pool")
@click.argument("name")
@command.json_option
@command.connected
def remove(client: clients.Client, name: str, as_json: bool) -> None:
    """Remove the pool NAME. It is refused while the pool has jobs that are not over, or pools below it."""
    client.remove_pool(name)
    terminal.say(f"{terminal.clean(name)} is gone.")
    if as_json:
        terminal.json_out({"pool": name})


def told(of: nouns.Pool) -> str:
    """`research: reserves gpus=8, limited to gpus=16, share gpus=2`: what was given to it."""
    parts = [f"below {of.parent}"] if of.parent else []
    for word, amounts in (("reserves", of.reserve), ("limited to", of.limit)):
        parts += [f"{word} {_typed(amounts)}"] if amounts else []
    parts += [f"share {' '.join(f'{name}={value:g}' for name, value in of.share.items())}"] if of.share else []
    parts += [f"static {' '.join(of.static)}"] if of.static else []
    parts += [f"policy {of.policy}"] if of.policy else []
    return terminal.clean(f"{of.name}: {', '.join(parts) or 'no reservation, no limit'}")


def _typed(amounts: dict[str, float]) -> str:
    from oarlock.spec import pooltrees

    return " ".join(f"{resource}={pooltrees.typed(resource, value)}" for resource, value in amounts.items())


def _amounts(field: str, values: Sequence[str]) -> dict[str, str | None] | None:
    """`gpus=8,memory=64Gi` and further such as amounts by resource; None: all of them are taken away."""
    parts = list(_parts(values))
    if parts == [NONE]:
        return None
    found: dict[str, str | None] = {}
    for part in parts:
        resource, equals, value = part.partition("=")
        if not equals or not value:
            raise errors.InvalidInput(
                f"{part[:40]!r} is no resource with its amount", path=f"--{field}", hint=f"Write --{field} gpus=8."
            )
        found[resource] = None if value == NONE else value
    return found


def _shares(values: Sequence[str]) -> dict[str, str | None] | None:
    """A number alone is the share of every resource."""
    from oarlock.spec import pools as nouns

    parts = list(_parts(values))
    plain = [part for part in parts if "=" not in part and part != NONE]
    named = _amounts("share", [part for part in parts if part not in plain])
    return named if named is None else {**{name: value for value in plain for name in nouns.RESOURCES}, **named}


def _parts(values: Sequence[str]) -> Iterator[str]:
    return (part.strip() for value in values for part in value.split(",") if part.strip())


for _verb in (set_pool, remove):
    pool.add_command(_verb)
