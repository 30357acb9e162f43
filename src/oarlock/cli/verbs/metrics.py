"""`oarlock metrics`: what a job measured, as small pictures and numbers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from oarlock.cli import command
from oarlock.cli.output import terminal

if TYPE_CHECKING:
    from oarlock.client import answers
    from oarlock.client.synchronous import client as clients

BARS = "▁▂▃▄▅▆▇█"
PLAIN_BARS = "_.-=*#"
WIDTH = 32
POINTS = 500


@command.verb("metrics", short_help="Show what a job measured")
@command.job_argument
@command.option("--name", "names", multiple=True, metavar="NAME", help="Only this series; repeat it for more.")
@command.option("--points", type=int, default=POINTS, metavar="N", help="Thin each series to so many points.")
@command.option("--csv", "as_csv", is_flag=True, help="Print task, process, name, step, time and value of each point.")
@command.json_option
@command.connected
def metrics(client: clients.Client, job: str, names: tuple[str, ...], points: int, as_csv: bool, as_json: bool) -> None:
    """Show what JOB measured: its course, the last, the least and the greatest value of each series."""
    from oarlock.spec import errors

    if not 1 <= points <= 10_000:
        raise errors.InvalidInput(f"{points} is out of range", path="--points", hint="Between 1 and 10000.")
    found = client.metrics(job, names, points=points)
    if as_json:
        terminal.json_out(found)
    elif as_csv:
        _csv(found.series)
    elif not found.series:
        known = f"; there are: {', '.join(found.names)}" if found.names and names else ""
        terminal.say(f"No such metrics{known}." if known else "No metrics yet: `oarlock.train` reports them.")
    else:
        _table(found.series)


def _table(series: Sequence[answers.Series]) -> None:
    from oarlock.cli.output import progress, tables

    columns = [
        tables.Column("NAME", weight=1),
        tables.Column("TASK", weight=2),
        tables.Column("COURSE", weight=3),
        tables.Column("LAST", right=True),
        tables.Column("LEAST", right=True),
        tables.Column("GREATEST", right=True),
        tables.Column("STEP", right=True),
        tables.Column("POINTS", right=True),
    ]
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
                sparkline(values, WIDTH, unicode=unicode),
                progress.number(values[-1]) if values else "-",
                progress.number(min(lows)) if lows else "-",
                progress.number(max(highs)) if highs else "-",
                str(one.points[-1].step) if one.points else "-",
                f"{one.count:,}",
            ]
        )
    tables.show(columns, rows)


def sparkline(values: Sequence[float], width: int, *, unicode: bool = True) -> str:
    """The course of `values` in at most `width` cells, each the mean of its part, from the least to the greatest."""
    if not values:
        return ""
    width = min(width, len(values))
    means = []
    for place in range(width):
        part = values[place * len(values) // width : (place + 1) * len(values) // width]
        means.append(sum(part) / len(part))
    least, greatest = min(means), max(means)
    bars = BARS if unicode else PLAIN_BARS
    if greatest == least:
        return bars[0] * width
    return "".join(bars[min(len(bars) - 1, int((mean - least) / (greatest - least) * len(bars)))] for mean in means)


def _csv(series: Sequence[answers.Series]) -> None:
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["task", "process", "name", "step", "time", "value"])
    for one in series:
        for point in one.points:
            value = "" if point.value is None else repr(point.value)
            writer.writerow([one.task, one.process, one.name, point.step, repr(point.at), value])
