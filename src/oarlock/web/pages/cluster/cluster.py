"""The cluster: a map of nodes and devices, and beside it the jobs that held them and those that are expected next.

The past is the API's record, the present its nodes, the future its forecast. All users see the same jobs here as in the
queue; the jobs that the reader may open are links. A node's name is one, too: it tells the node's devices and jobs in
words, for readers without a pointer that stays over a bar.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Sequence
from typing import Any

from oarlock.display.jobs import forecasts as words
from oarlock.spec import bodies
from oarlock.spec.access import users
from oarlock.web import routing
from oarlock.web.access import visits
from oarlock.web.drawing import clustermap
from oarlock.web.rendering import templating, times
from oarlock.web.updates import topics

SPANS = {"1h": 3600.0, "6h": 6 * 3600.0, "1d": 86_400.0, "7d": 7 * 86_400.0}
COLOURS = ("job", "owner", "pool", "phase")
GROUPS = ("type", "rack", "pool", "none")
AHEAD = 0.5
"""The part of the past's length that is shown of the future."""

MOST_NODES = 200
MOST_HELD = 5000
TICKS = 5
MOST_OF_NAME = 60
_OTHERS = re.compile(r"[^A-Za-z0-9._-]+")
"""Characters of a group's name that do not stand in its id as they are."""

PARTS = 320
"""Parts of the past's length by which the map moves on: one for each unit of its width."""


async def show(visit: visits.Visit) -> routing.Filled:
    client = visit.client
    chosen = _chosen(visit)
    span = SPANS[chosen["span"]]
    now = times.steady(visit.server.now, span / PARTS)
    nodes, queue, past, expected = await asyncio.gather(
        client.nodes(), client.queue(), client.history(since=now - span, limit=MOST_HELD), client.forecasts()
    )
    window = clustermap.Window(now - span, now, now + AHEAD * span)
    phases = {clustermap.key(one): str(one.phase) for one in queue}
    drawn = clustermap.Map(clustermap.Facts(past.items, expected, phases), window, chosen["colour"], _minute)
    found = [one for one in nodes if chosen["node"].casefold() in one.node.name.casefold()]
    return routing.Filled(
        template="cluster/cluster.html",
        facts={
            "chosen": chosen,
            "spans": tuple(SPANS),
            "colours": COLOURS,
            "groupings": GROUPS,
            "groups": (groups := _groups(found, chosen, drawn)),
            "node": next((row for one in groups for row in one["rows"] if row.name == chosen["node"]), None),
            "nodes": len(found),
            "closed": any(not row.ready for one in groups for row in one["rows"]),
            "all": len(nodes),
            "width": clustermap.WIDTH,
            "now_x": window.x(now),
            "ticks": _ticks(window),
            "jobs": _jobs(visit, queue, expected, drawn),
            "cut": past.cut,
            "computed": expected.computed,
            "topics": (topics.NODES, topics.QUEUE),
            "refresh": topics.refresh(visit.server.seq, expected) if queue else 0,
        },
    )


def _chosen(visit: visits.Visit) -> dict[str, str]:
    """Return the choices of the address; an unknown one is the default."""
    spans, colours, groups = (visit.asked(name) for name in ("span", "colour", "group"))
    return {
        "span": spans if spans in SPANS else "6h",
        "colour": colours if colours in COLOURS else COLOURS[0],
        "group": groups if groups in GROUPS else GROUPS[0],
        "node": visit.asked("node"),
        "in": visit.asked("in"),
        "first": visit.asked("first") if visit.asked("in") and _place(visit.asked("first")) else "",
    }


def _place(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _groups(found: Sequence[bodies.NodeState], chosen: dict[str, str], drawn: clustermap.Map) -> list[dict[str, Any]]:
    """Return the groups of nodes with their sums.

    Rows are drawn for the first nodes; or for those of the group `in` from the place `first` on, which counts from 1.
    """
    by_name: dict[str, list[bodies.NodeState]] = {}
    for one in found:
        by_name.setdefault(_group(one, chosen["group"], drawn), []).append(one)
    groups, left = [], MOST_NODES
    first = max(1, int(chosen["first"] or 1))
    for name, states in sorted(by_name.items()):
        asked = not chosen["in"] or chosen["in"] == name
        before = first - 1 if chosen["in"] and first <= len(states) else 0
        shown = states[before : before + left] if asked else []
        left -= len(shown)
        until = before + len(shown)
        groups.append(
            {
                "id": _id(name),
                "name": name,
                "nodes": len(states),
                "ready": sum(one.node.ready for one in states),
                "held": sum(one.held.devices for one in states),
                "devices": sum(one.node.capacity.gpus for one in states),
                "rows": [drawn.row(one) for one in shown],
                "part": f"{before + 1:,} to {until:,}" if 0 < len(shown) < len(states) else "",
                "before": before,
                "earlier": str(max(1, before - MOST_NODES + 1)),
                "hidden": len(states) - until,
                "later": str(until + 1) if until else "",
            }
        )
    return groups


def _id(group: str) -> str:
    """Return the id of a group, which is the name of its table, too. It is made from the group's name alone.

    So a group that comes or goes does not change what the reader has folded, nor the address of another's table.
    """
    plain = _OTHERS.sub("-", group)[:MOST_OF_NAME]
    if plain != group:
        plain += f"~{hashlib.sha256(group.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
    return f"group-{plain}"


def _group(state: bodies.NodeState, by: str, drawn: clustermap.Map) -> str:
    if by == "rack":
        return state.node.domains.get("rack", "no rack")
    if by == "pool":
        return ", ".join(drawn.pools(state.node)) or "no jobs"
    if by == "type":
        return ", ".join(sorted({device.type for device in state.node.devices})) or "no GPUs"
    return "all nodes"


def _jobs(
    visit: visits.Visit, queue: Sequence[bodies.QueueRow], expected: bodies.Forecasts, drawn: clustermap.Map
) -> list[dict[str, Any]]:
    """Return the legend, which is the text of the map, too: each active job, what it holds, and its forecast."""
    told = words.expected(expected)
    everything = visit.may(users.Right.ADMIN)
    return [
        {
            "row": one,
            "colour": drawn.colour(one, str(one.phase)),
            "expected": told.get(clustermap.key(one), ""),
            "seen": bool(one.job) and (everything or one.user == visit.server.user),
        }
        for one in queue
    ]


def _ticks(window: clustermap.Window) -> list[tuple[float, str, str]]:
    """Return the position of each tick, its time of day in UTC (after the day if that is another one), its moment."""
    step = (window.end - window.begin) / TICKS
    here, found = templating.moment(window.now), []
    for number in range(TICKS):
        at = window.begin + step * number
        day = templating.moment(at)
        word = day[11:16] if day[:10] == here[:10] else f"{day[5:10]} {day[11:16]}"
        found.append((window.x(at), word, day))
    return found


def _minute(at: float) -> str:
    """Return a time as `2026-01-31 12:00 UTC`. The page's script writes it in the browser's zone (`times.js`)."""
    moment = templating.moment(at)
    return f"{moment[:10]} {moment[11:16]} UTC"


PAGES: tuple[routing.Page, ...] = (routing.Page(path="/cluster", title="Cluster", handler=show, key="c", live=True),)
