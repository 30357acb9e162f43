"""`oarlock nodes`, `sizes` and `usage`: machines, T-shirt sizes, and the hours that jobs have used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from oarlock.cli import command, moments
from oarlock.cli.output import terminal
from oarlock.spec.cluster import prices

if TYPE_CHECKING:
    from oarlock.client.synchronous import clients

MOST_HELD = 5000


@command.verb("nodes", short_help="List the machines and the jobs on them")
@command.option("--since", metavar="TIME", help="List the jobs that held the machines from then on: 2h (ago).")
@command.option("--until", metavar="TIME", show_default="now", help="With --since: end of the period.")
@command.json_option
@command.connected
def nodes(client: clients.Client, since: str | None, until: str | None, as_json: bool) -> None:
    """List the machines: their resources, the part that is held, and the jobs that hold it. Then sum up the GPUs of
    each type: those that are held, that others have taken, and that are free.
    """
    if since is not None or until is not None:
        _history(client, since, until, as_json=as_json)
        return
    from oarlock.display.tables import columns, gputypes, nodecells

    found = client.nodes()
    types = gputypes.of(found)
    if as_json:
        terminal.json_out({"items": found, "gpu_types": types})
        return
    from oarlock.cli.output import tables

    tables.show(columns.NODES, [nodecells.row(view) for view in found])
    if types:
        terminal.out("")
        tables.show(columns.GPU_TYPES, [gputypes.row(one) for one in types])


def _history(client: clients.Client, since: str | None, until: str | None, *, as_json: bool) -> None:
    found = client.history(**moments.read(since=since, until=until), limit=MOST_HELD)
    if as_json:
        terminal.json_out(found)
        return
    from oarlock.cli.output import tables
    from oarlock.display.tables import columns, nodecells

    tables.show(columns.HISTORY, [nodecells.held_before(one, found.until) for one in found.items])
    if found.cut:
        terminal.say(f"Only the last {MOST_HELD:,} attempts of that time are listed. Choose a shorter time.")


@command.verb("sizes", short_help="List the T-shirt sizes of `run --size`")
@command.json_option
def sizes(as_json: bool) -> None:
    """List the T-shirt sizes: the resources of each task under `--size`.

    The rows of FfDL are measured and published. The other rows extend them, or follow the machines that clouds offer.
    """
    from oarlock.spec.input import sizes as table

    found = list(table.TABLE.values())
    if as_json:
        fields = ("name", "cpus", "memory", "gpus", "gpu_type", "source")
        terminal.json_out({"items": [{field: getattr(size, field) for field in fields} for size in found]})
        return
    from oarlock.cli.output import tables
    from oarlock.display.tables import columns

    tables.show(
        columns.SIZES,
        [
            [size.name, str(size.gpus), size.gpu_type, str(size.cpus), f"{size.memory_gib} GiB", size.source]
            for size in found
        ],
    )


@command.verb("usage", short_help="Sum up device-hours and CPU-hours")
@command.option(
    "--by",
    type=click.Choice(["user", "pool", "gpu_type", "day"]),
    default="user",
    show_default=True,
    help="One row for each of these.",
)
@command.option("--since", metavar="TIME", help="Start of the period: 30d (ago), or 2026-01-31.")
@command.json_option
@command.connected
def usage(client: clients.Client, by: str, since: str | None, as_json: bool) -> None:
    """Sum up the hours of jobs that have ended and of jobs that run.

    Devices count from launch to release. They are useful while the job is PROCESSING, and idle in launch, download and
    storing.
    """
    found = client.usage(**moments.read(since=since), by=by)
    if as_json:
        terminal.json_out({"items": found})
        return
    from oarlock.cli.output import tables
    from oarlock.display.tables import columns

    currency = client.server().currency if any(row.cost for row in found) else ""
    tables.show(
        [columns.Column(by.upper().replace("_", " "), weight=1), *columns.USAGE_HOURS],
        [
            [
                row.name,
                *(f"{hours:,.2f}" for hours in (row.device_hours, row.useful_hours, row.idle_hours)),
                f"{row.cpu_hours:,.2f}",
                prices.amount_text(row.cost, currency) if row.cost else "",
            ]
            for row in found
        ],
    )
