"""Decisions about a job, in words, from its event log: admissions, refusals, preemptions, resizes, moves.

Consecutive refusals with the same code are one decision, with the last message and the number of refusals.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from oarlock.api import routes
from oarlock.scheduler import wording
from oarlock.spec import bodies, errors, events, intents
from oarlock.spec.input import edits, quantities

MAX_RECORDS = 20_000
"""The most lines of one job that are read."""

_PAGE = 1000


async def show(call: routes.Call) -> bodies.DecisionList:
    job = await call.access.job(call.path["job"])
    after, complete = 0, True
    found: list[events.Record] = []
    while len(found) < MAX_RECORDS:
        try:
            page = await call.access.records(after, _PAGE, job_id=job.id)
        except errors.Gone as error:
            if not complete:
                raise
            after, complete = int(error.detail["first"]) - 1, False
            continue
        found += page.items
        if len(page.items) < _PAGE:
            break
        after = page.seen
    return bodies.DecisionList(tuple(made(found)), None, complete)


def made(records: Iterable[events.Record]) -> Iterable[bodies.Decision]:
    """Yield the decisions in a job's records, oldest first."""
    refused: bodies.Decision | None = None
    for record in records:
        decision = _decision(record)
        if decision is None:
            continue
        if decision.what is bodies.What.REFUSED and refused is not None and refused.code == decision.code:
            refused = msgspec.structs.replace(decision, at=refused.at, until=decision.at, count=refused.count + 1)
            continue
        if refused is not None:
            yield refused
        refused = decision if decision.what is bodies.What.REFUSED else None
        if refused is None:
            yield decision
    if refused is not None:
        yield refused


def _decision(record: events.Record) -> bodies.Decision | None:
    data = record.data
    if record.kind == "admitted":
        return bodies.Decision(
            at=record.at,
            what=bodies.What.ADMITTED,
            text=f"attempt {data.get('attempt')}: {places(data.get('holdings', ()))}",
            reason=data.get("reason", ""),
            attempt=int(data.get("attempt", 0)),
        )
    if record.kind == "refused":
        refusal = data.get("refusal", {})
        return bodies.Decision(
            at=record.at, what=bodies.What.REFUSED, text=refusal.get("message", ""), code=refusal.get("code", "")
        )
    if record.kind == "batch_decided":
        batch = data.get("batch") or (0, 1)
        return bodies.Decision(
            at=record.at, what=bodies.What.BATCH, text=_batch(batch), attempt=int(data.get("attempt", 0))
        )
    if record.kind == "reshaped":
        return _resized(record.at, data.get("reason", ""))
    if record.kind == "edited":
        return _edit(record)
    return _wish(record) if record.kind == "intended" else None


def _resized(at: float, reason: str) -> bodies.Decision:
    said, _, why = reason.partition(": ")
    what = bodies.What.MOVED if said.startswith("moved") else bodies.What.RESIZED
    return bodies.Decision(at=at, what=what, text=said.removeprefix(f"{what} "), reason=why)


def _edit(record: events.Record) -> bodies.Decision:
    changed = ", ".join(f"{name} {value}" for name in edits.FIELDS if (value := record.data.get(name)) is not None)
    by = record.data.get("by", "")
    return bodies.Decision(at=record.at, what=bodies.What.OWNER, text=f"set by {by}: {changed}" if by else changed)


def _wish(record: events.Record) -> bodies.Decision:
    intent, by, reason = (record.data.get(name, "") for name in ("intent", "by", "reason"))
    if intent == intents.Intent.PREEMPT:
        return bodies.Decision(
            at=record.at, what=bodies.What.PREEMPTED, text=f"by {by or 'the scheduler'}", reason=reason
        )
    if intent == intents.Intent.RESIZE:
        return _resized(record.at, reason)
    word = {"halt": "halted", "cancel": "canceled", "run": "resumed"}.get(intent, intent)
    return bodies.Decision(at=record.at, what=bodies.What.OWNER, text=f"{word} by {by}" if by else word, reason=reason)


def places(claims: Iterable[Mapping[str, Any]]) -> str:
    """Return holdings in words: `4 tasks each on n0 and n1 (GPUs 0-3), 1 task on n2`."""
    tasks: dict[str, int] = {}
    devices: dict[str, list[int]] = {}
    for claim in claims:
        node = str(claim["node"])
        tasks[node] = tasks.get(node, 0) + 1
        devices.setdefault(node, []).extend(claim.get("devices", ()))
    alike: dict[tuple[int, str], list[str]] = {}
    for node, count in tasks.items():
        alike.setdefault((count, quantities.ranges_text(devices[node])), []).append(node)
    parts = []
    for (count, held), nodes in alike.items():
        each = " each" if len(nodes) > 1 else ""
        cards = f" (GPU{'' if held.isdigit() else 's'} {held})" if held else ""
        parts.append(f"{count} task{'' if count == 1 else 's'}{each} on {wording.named(nodes, 'more nodes')}{cards}")
    return ", ".join(parts) or "nowhere"


def _batch(batch: Any) -> str:
    local, accumulate = (batch.get("local"), batch.get("accumulate", 1)) if isinstance(batch, Mapping) else batch
    return f"batch size {local} for each process" + (f", {accumulate} accumulated" if accumulate > 1 else "")


ROUTES: tuple[routes.Route, ...] = (
    routes.look(
        "/api/v1/jobs/{job}/decisions", show, "all decisions about the job, with their reasons", bodies.DecisionList
    ),
)
