"""`oarlock nodes`, `sizes` and `usage`: machines, T-shirt sizes, and the hours that jobs have used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from oarlock.cli import command
from oarlock.cli.output import terminal

if TYPE_CHECKING:
    from oarlock.client.synchronous import client as clients
    from oarlock.spec import bodies
    from oarlock.spec.nodes import Node


@command.verb("nodes", short_help="List the machines and who holds what")
@command.json_option
@command.connected
def nodes(client: clients.Client, as_json: bool) -> None:
    """List the machines: what they have, what of it is held, and by which jobs."""
    found = client.nodes()
    if as_json:
        terminal.json_out({"items": found})
        return
    from oarlock.cli.output import tables

    columns = [
        tables.Column("NODE", weight=1),
        tables.Column("STATE", colours={"ready": "green"}),
        tables.Column("CPUS", right=True),
        tables.Column("MEMORY", right=True),
        tables.Column("GPUS", right=True),
        tables.Column("BY OTHERS", weight=1),
        tables.Column("TYPE", weight=1),
        tables.Column("HELD BY", weight=9),
    ]
    tables.show(columns, [_row(view) for view in found])


def _row(view: bodies.NodeState) -> list[str]:
    from oarlock.spec import quantities

    node, held = view.node, view.held
    several = len({one.user for one in view.holders}) > 1
    holders = dict.fromkeys(f"{one.name} ({one.user})" if several else one.name for one in view.holders)
    types = dict.fromkeys(device.type + (" (virtual)" if device.virtual else "") for device in node.devices)
    memory = f"{quantities.memory_text(held.memory_bytes)} / {quantities.memory_text(node.capacity.memory_bytes)}"
    return [
        node.name,
        _state(node),
        f"{held.cpus_milli / 1000:g}/{node.capacity.cpus_milli / 1000:g}",
        memory,
        f"{held.devices:g}/{node.capacity.gpus}" if node.capacity.gpus else "",
        _taken(node),
        ", ".join(types),
        ", ".join(holders),
    ]


def _state(node: Node) -> str:
    if not node.ready:
        return node.reason or "not ready"
    return "ready" if node.open else f"closed: {', '.join(map(str, node.taints))}"


def _taken(node: Node) -> str:
    """Return the amounts that programs of others take."""
    from oarlock.spec import quantities

    taken, parts = node.taken, []
    if taken.cpus_milli:
        parts.append(f"{taken.cpus_milli / 1000:g} CPUs")
    if taken.memory_bytes:
        parts.append(quantities.memory_text(taken.memory_bytes))
    if taken.devices:
        parts.append(f"{taken.devices:g} GPU{'' if taken.devices == 1 else 's'}")
    return ", ".join(parts)


@command.verb("sizes", short_help="List the T-shirt sizes that `run --size` takes")
@command.json_option
def sizes(as_json: bool) -> None:
    """List the T-shirt sizes: what each task of `--size` takes.

    Rows of FfDL are measured and published; the others are extended from them, or from what machines have.
    """
    from oarlock.spec import sizes as table

    found = list(table.TABLE.values())
    if as_json:
        terminal.json_out(
            {
                "items": [
                    {"name": size.name, "cpus": size.cpus, "memory": size.memory}
                    | {"gpus": size.gpus, "gpu_type": size.gpu_type, "source": size.source}
                    for size in found
                ]
            }
        )
        return
    from oarlock.cli.output import tables

    columns = [
        tables.Column("SIZE"),
        tables.Column("GPUS", right=True),
        tables.Column("TYPE"),
        tables.Column("CPUS", right=True),
        tables.Column("MEMORY", right=True),
        tables.Column("SOURCE"),
    ]
    rows = [
        [size.name, str(size.gpus), size.gpu_type, str(size.cpus), f"{size.memory_gib} GiB", size.source]
        for size in found
    ]
    tables.show(columns, rows)


@command.verb("usage", short_help="Sum up device-hours and CPU-hours")
@command.option("--by", type=click.Choice(["user", "pool"]), default="user", help="What to sum up by.")
@command.option("--since", metavar="TIME", help="What was used since: 30d ago, or 2026-01-31.")
@command.json_option
@command.connected
def usage(client: clients.Client, by: str, since: str | None, as_json: bool) -> None:
    """Sum up what was used, of jobs that have ended and of those that run."""
    from oarlock.client import verbs

    found = client.usage(since=None if since is None else verbs.since_of(since), by=by)
    if as_json:
        terminal.json_out({"items": found})
        return
    from oarlock.cli.output import tables
    from oarlock.spec import prices

    columns = [
        tables.Column(by.upper(), weight=1),
        tables.Column("DEVICE-HOURS", right=True),
        tables.Column("CPU-HOURS", right=True),
        tables.Column("COST", right=True),
    ]
    currency = client.server().currency if any(row.cost for row in found) else ""
    rows = [
        [
            row.name,
            f"{row.device_hours:,.2f}",
            f"{row.cpu_hours:,.2f}",
            prices.amount_text(row.cost, currency) if row.cost else "",
        ]
        for row in found
    ]
    tables.show(columns, rows)
