"""`oarlock nodes`: the machines, what is free on them and who holds the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oarlock.cli import command, terminal

if TYPE_CHECKING:
    from oarlock.client import answers
    from oarlock.client.synchronous import client as clients


@command.verb("nodes", short_help="List the machines and who holds what")
@command.json_option
@command.connected
def nodes(client: clients.Client, as_json: bool) -> None:
    """List the machines: what they have, what of it is held, and by which jobs."""
    found = client.nodes()
    if as_json:
        terminal.json_out({"items": found})
        return
    from oarlock.cli import tables

    columns = [
        tables.Column("NODE", weight=1),
        tables.Column("STATE", colours={"ready": "green"}),
        tables.Column("CPUS", right=True),
        tables.Column("MEMORY", right=True),
        tables.Column("GPUS", right=True),
        tables.Column("TYPE", weight=1),
        tables.Column("HELD BY", weight=9),
    ]
    tables.show(columns, [_row(view) for view in found])


def _row(view: answers.NodeView) -> list[str]:
    from oarlock.spec import quantities

    node, held = view.node, view.held
    several = len({one.user for one in view.holders}) > 1
    holders = dict.fromkeys(f"{one.name} ({one.user})" if several else one.name for one in view.holders)
    types = dict.fromkeys(device.type + (" (virtual)" if device.virtual else "") for device in node.devices)
    memory = f"{quantities.memory_text(held.memory_bytes)} / {quantities.memory_text(node.capacity.memory_bytes)}"
    return [
        node.name,
        "ready" if node.ready else node.reason or "not ready",
        f"{held.cpus_milli / 1000:g}/{node.capacity.cpus_milli / 1000:g}",
        memory,
        f"{held.devices:g}/{node.capacity.gpus}" if node.capacity.gpus else "",
        ", ".join(types),
        ", ".join(holders),
    ]
