"""`oarlock metrics`: a job's measurements as sparklines and numbers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from oarlock.cli import command
from oarlock.cli.output import terminal

if TYPE_CHECKING:
    from oarlock.client import answers
    from oarlock.client.synchronous import clients

WIDTH = 32
POINTS = 500


@command.verb("metrics", short_help="Show a job's metrics")
@command.job_argument
@command.option("--name", "names", multiple=True, metavar="NAME", help="Show only this series. Can be repeated.")
@command.option(
    "--points",
    type=int,
    default=POINTS,
    show_default=True,
    metavar="N",
    help="Most points of a series (1 to 10000).",
)
@command.option("--steps", metavar="FIRST:LAST", help="Show only these steps: 100:200, 100: or :200.")
@command.option(
    "--ranks", type=click.IntRange(1), metavar="N", help="Show the series of the first N ranks that report it."
)
@command.option("--csv", "as_csv", is_flag=True, help="Print each point: task, process, name, step, time, value.")
@command.json_option
@command.connected
def metrics(
    client: clients.Client,
    job: str,
    names: tuple[str, ...],
    points: int,
    steps: str | None,
    ranks: int | None,
    as_csv: bool,
    as_json: bool,
) -> None:
    """Show JOB's metrics: the course, the last, the least and the greatest value of each series."""
    from oarlock.spec import errors

    if not 1 <= points <= 10_000:
        raise errors.InvalidInput(f"{points} is out of range", path="--points", hint="Write a number from 1 to 10000.")
    found = client.metrics(job, names, points=points, steps=_steps(steps), ranks=ranks)
    if as_json:
        terminal.json_out(found)
    elif as_csv:
        _csv(found.series)
    elif found.series:
        _table(found.series)
    elif found.names and names:
        terminal.say(f"No such metrics. The job has: {terminal.clean(', '.join(found.names))}.")
    else:
        terminal.say("No metrics yet. A script reports them with `oarlock.train`.")


def _steps(text: str | None) -> tuple[int | None, int | None]:
    """Return the first and the last step; None for an end that is left open."""
    from oarlock.spec import errors

    first, colon, last = (text or ":").partition(":")
    if not colon or not all(end == "" or (end.isascii() and end.isdigit() and len(end) < 19) for end in (first, last)):
        raise errors.InvalidInput(
            f"{text!r} is not a range of steps", path="--steps", hint="Write 100:200, 100: or :200."
        )
    return int(first) if first else None, int(last) if last else None


def _table(series: Sequence[answers.Series]) -> None:
    from oarlock.cli.output import tables
    from oarlock.display import amounts, bars
    from oarlock.display.tables import columns

    unicode = terminal.speaks_unicode(sys.stdout)
    several = len({(one.task, one.process) for one in series}) > 1
    rows = []
    for one in sorted(series, key=lambda one: (one.name, one.task, one.process)):
        values = one.values
        lows = [value for value in one.low if value is not None] or values
        highs = [value for value in one.high if value is not None] or values
        rows.append(
            [
                one.name,
                (f"{one.task}.{one.process}" if one.process else one.task) if several else "",
                bars.sparkline(values, WIDTH, unicode=unicode),
                amounts.number(values[-1]) if values else "-",
                amounts.number(min(lows)) if lows else "-",
                amounts.number(max(highs)) if highs else "-",
                str(one.points[-1].step) if one.points else "-",
                f"{one.count:,}",
            ]
        )
    tables.show(columns.METRICS, rows)


def _csv(series: Sequence[answers.Series]) -> None:
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["task", "process", "name", "step", "time", "value"])
    for one in series:
        for point in one.points:
            value = "" if point.value is None else repr(point.value)
            writer.writerow([one.task, one.process, one.name, point.step, repr(point.at), value])
