"""The usage by day, user, pool or type of GPU: device-hours, of these useful and idle, CPU-hours, and cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oarlock.spec import bodies
from oarlock.spec.cluster import prices
from oarlock.web import routing
from oarlock.web.access import visits
from oarlock.web.rendering import templating
from oarlock.web.updates import topics

DAY_S = 86_400.0
SPANS = {"1d": 1, "7d": 7, "30d": 30, "90d": 90, "365d": 365}
KINDS = {"day": "day", "user": "user", "pool": "pool", "gpu_type": "GPU type"}
COLUMNS = {
    "device_hours": ("GPU-hours", "devices held, from launch to release"),
    "useful_hours": ("Useful", "devices held while the job was PROCESSING"),
    "idle_hours": ("Idle", "devices held in launch, download and storing, and while a failure was kept"),
    "cpu_hours": ("CPU-hours", "cores held, from launch to release"),
}
"""The columns of hours, each with its title and its meaning."""

WIDTH = 160


async def show(visit: visits.Visit) -> routing.Filled:
    chosen = _chosen(visit)
    since = await _since(visit, chosen["span"])
    rows = await _rows(visit, since, chosen["by"])
    devices = any(row.device_hours for row in rows)
    scale = WIDTH / (max((_hours(row, devices=devices) for row in rows), default=0.0) or 1.0)
    currency = visit.server.currency
    return routing.Filled(
        template="cluster/usage.html",
        facts={
            "chosen": chosen,
            "spans": tuple(SPANS),
            "kinds": KINDS,
            "columns": COLUMNS,
            "rows": [
                {
                    "row": row,
                    "hours": _columns([row]),
                    "width": scale * _hours(row, devices=devices),
                    "useful": scale * row.useful_hours,
                    "cost": _cost(row.cost, currency),
                }
                for row in rows
            ],
            "sums": _columns(rows),
            "cost": sum(row.cost for row in rows),
            "cost_text": _cost(sum(row.cost for row in rows), currency),
            "command": f"oarlock usage --by {chosen['by']} --since {templating.moment(since)}",
            "bar": "GPU-hours, the useful part is blue" if devices else "CPU-hours",
            "width": WIDTH,
            "topics": (),  # no event tells of hours that go on
            "refresh": topics.SLOW_S,
        },
    )


def _chosen(visit: visits.Visit) -> dict[str, str]:
    """Return the choices of the address; an unknown one is the default."""
    by, span = visit.asked("by"), visit.asked("span")
    return {"by": by if by in KINDS else next(iter(KINDS)), "span": span if span in SPANS else "30d"}


async def _since(visit: visits.Visit, span: str) -> float:
    """Return the begin of the span: it has whole days (UTC), today's included."""
    now = (await visit.client.summaries(limit=1)).now
    return (now // DAY_S - SPANS[span] + 1) * DAY_S


async def _rows(visit: visits.Visit, since: float, by: str) -> list[bodies.UsageRow]:
    """Return the rows: the newest day is first, or the greatest use."""
    found = await visit.client.usage(since=since, by=by)
    order: Any = (lambda row: row.name) if by == "day" else (lambda row: (row.device_hours, row.cpu_hours))
    return sorted(found, key=order, reverse=True)


def _hours(row: bodies.UsageRow, *, devices: bool) -> float:
    return row.device_hours if devices else row.cpu_hours


def _columns(rows: Sequence[bodies.UsageRow]) -> list[float]:
    return [sum(getattr(row, name) for row in rows) for name in COLUMNS]


def _cost(cost: float, currency: str) -> str:
    return prices.amount_text(cost, currency) if cost else ""


PAGES: tuple[routing.Page, ...] = (routing.Page(path="/usage", title="Usage", handler=show, key="u", live=True),)
