"""`oarlock pools`: the resource pools, their limits, and what their jobs hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from oarlock.cli import command, terminal

if TYPE_CHECKING:
    from oarlock.client import client as clients
    from oarlock.spec import holdings


@command.verb("pools", short_help="List the resource pools")
@command.json_option
@command.connected
def pools(client: clients.Client, as_json: bool) -> None:
    """List the resource pools: reservations, limits, shares, and what is held in each."""
    found = client.pools()
    if as_json:
        terminal.json_out({"items": found})
        return
    from oarlock.cli import tables

    columns = [
        tables.Column("POOL", weight=1),
        tables.Column("PARENT", weight=2),
        tables.Column("RESERVE", weight=3),
        tables.Column("LIMIT", weight=3),
        tables.Column("SHARE", right=True),
        tables.Column("HELD", weight=3),
        tables.Column("RUNNING", right=True),
        tables.Column("WAITING", right=True),
    ]
    rows = [
        [
            view.pool.name,
            view.pool.parent or "",
            amounts(view.pool.reserve),
            amounts(view.pool.limit),
            amounts(view.pool.share) or "1",
            held(view.held),
            str(view.running),
            str(view.waiting),
        ]
        for view in found
    ]
    tables.show(columns, rows)


def amounts(of: Mapping[str, float]) -> str:
    from oarlock.spec import quantities

    return " ".join(
        f"{resource}={quantities.memory_text(value) if resource == 'memory' else f'{value:g}'}"
        for resource, value in of.items()
    )


def held(of: holdings.Resources) -> str:
    found = {"gpus": of.gpus, "cpus": of.cpus_milli / 1000, "memory": of.memory_bytes}
    return amounts({resource: value for resource, value in found.items() if value})
