"""`oarlock usage`: device-hours and CPU-hours by user or pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from oarlock.cli import command, terminal

if TYPE_CHECKING:
    from oarlock.client.synchronous import client as clients


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
    from oarlock.cli import tables
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
