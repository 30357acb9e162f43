"""The usage of the cluster: device-hours, CPU-hours and cost by day, user or pool, as a table with bars and as CSV."""

from __future__ import annotations

import csv
import io
from typing import Any

from starlette import responses

from oarlock.spec import bodies
from oarlock.spec.cluster import prices
from oarlock.web import routing
from oarlock.web.access import visits
from oarlock.web.rendering import texts

DAY_S = 86_400.0
SPANS = {"1d": 1, "7d": 7, "30d": 30, "90d": 90, "365d": 365}
KINDS = ("day", "user", "pool")
WIDTH = 160


async def show(visit: visits.Visit) -> routing.Filled:
    chosen = _chosen(visit)
    rows = await _rows(visit, chosen)
    field = "device_hours" if any(row.device_hours for row in rows) else "cpu_hours"
    most = max((getattr(row, field) for row in rows), default=0.0) or 1.0
    currency = visit.server.currency
    return routing.Filled(
        template="cluster/usage.html",
        facts={
            "chosen": chosen,
            "spans": tuple(SPANS),
            "kinds": KINDS,
            "rows": [
                {"row": row, "width": WIDTH * getattr(row, field) / most, "cost": _cost(row.cost, currency)}
                for row in rows
            ],
            "sums": {
                "devices": sum(row.device_hours for row in rows),
                "cpus": sum(row.cpu_hours for row in rows),
                "cost": _cost(sum(row.cost for row in rows), currency),
            },
            "bar": "GPU-hours" if field == "device_hours" else "CPU-hours",
            "width": WIDTH,
        },
    )


async def download(visit: visits.Visit) -> responses.Response:
    """Return the same rows as CSV, with unrounded numbers."""
    chosen = _chosen(visit)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([chosen["by"], "device_hours", "cpu_hours", "cost"])
    for row in await _rows(visit, chosen):
        writer.writerow([texts.cell(value) for value in (row.name, row.device_hours, row.cpu_hours, row.cost)])
    headers = {"content-disposition": 'attachment; filename="usage.csv"'}
    return responses.Response(text.getvalue(), media_type="text/csv", headers=headers)


def _chosen(visit: visits.Visit) -> dict[str, str]:
    """Return the choices of the address; an unknown one is the default."""
    by, span = visit.asked("by"), visit.asked("span")
    return {"by": by if by in KINDS else KINDS[0], "span": span if span in SPANS else "30d"}


async def _rows(visit: visits.Visit, chosen: dict[str, str]) -> list[bodies.UsageRow]:
    """Return the rows of the whole days (UTC) of the span, today's included; the newest day is first."""
    now = (await visit.client.summaries(limit=1)).now
    since = (now // DAY_S - SPANS[chosen["span"]] + 1) * DAY_S
    found = await visit.client.usage(since=since, by=chosen["by"])
    order: Any = (lambda row: row.name) if chosen["by"] == "day" else (lambda row: (row.device_hours, row.cpu_hours))
    return sorted(found, key=order, reverse=True)


def _cost(cost: float, currency: str) -> str:
    return prices.amount_text(cost, currency) if cost else ""


PAGES: tuple[routing.Page, ...] = (
    routing.Page(path="/usage", title="Usage", handler=show, key="u"),
    routing.Page(path="/usage.csv", handler=download),
)
