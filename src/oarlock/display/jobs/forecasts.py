"""Forecasts in words: the verdict on a job that is not submitted yet, and when each job should start or end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from oarlock.display import amounts, durations
from oarlock.spec import bodies, plans, refusals
from oarlock.spec.cluster import prices

SHOWN_NODES = 16
SHOWN_HOLDERS = 3
REASONS: Mapping[refusals.Code, str] = {
    refusals.Code.NO_CAPACITY: "There is no room for it.",
    refusals.Code.BEHIND: "Other jobs come first.",
    refusals.Code.RESERVED: "It would delay a job that came first.",
    refusals.Code.OUTRANKED: "The policy prefers other jobs for now.",
    refusals.Code.STOPPING: "Its place is being cleared.",
    refusals.Code.POOL_LIMIT: "The limit of its pool is used up.",
    refusals.Code.POOL_SHARE: "Its pool has its entitlement.",
    refusals.Code.NOT_RESERVED: "The reservation of its pool is used up.",
    refusals.Code.NEVER_FITS: "No node could hold it.",
    refusals.Code.NEVER_IN_POOL: "It needs more than the limit of its pool.",
    refusals.Code.NO_SUCH_DEVICE: "No node has such a GPU.",
    refusals.Code.NO_NODES: "No node is ready.",
    refusals.Code.BACKING_OFF: "The platform has failed; it is tried again.",
}
"""Why a job waits, in the words that all users may read."""

Key = tuple[str, str, str]
"""A job by its user, pool and name, which all users may see. No two active jobs have the same."""


def lines(forecast: plans.Forecast, currency: str) -> Iterator[str]:
    """Yield the verdict; then the nodes, the holders, the smallest change, the expected start and the price."""
    yield f"{forecast.when.capitalize()}: {forecast.message}"
    if forecast.when is plans.When.NOW:  # a later place is a guess
        yield from _nodes(forecast)
    refusal = forecast.refusal
    yield _holders(refusal) if refusal is not None else ""
    yield forecast.makes_way
    yield refusal.change if refusal is not None else ""
    if forecast.when is plans.When.LATER:
        place = f"It would be number {forecast.position} of {forecast.waiting} waiting jobs."
        yield f"{forecast.expected} {place if forecast.waiting > 1 else ''}".strip()
    if forecast.price_per_h:
        yield f"It costs about {prices.amount_text(forecast.price_per_h, currency)} an hour."


def expected(of: bodies.Forecasts) -> dict[Key, str]:
    """Return one sentence for each job, by its key: its expected start, or its expected end."""
    told = {(one.user, one.pool, one.name): one.expected or one.message for one in of.starts}
    for one in of.ends:
        told[one.user, one.pool, one.name] = _end(one, of.at)
    return told


def why(row: bodies.QueueRow) -> str:
    """Return why a job of the queue waits, as all users may read it; empty where no reason is known yet."""
    return REASONS[row.code] if row.code is not None else ""


def holders(row: bodies.QueueRow) -> str:
    """Return `Held by big (2 GPUs), small (1 GPU).`: the holders of what the job lacks; empty without any."""
    resource = "gpus" if row.needs is not None and row.needs.devices else "cpus"
    told = [
        f"{one.name} ({amounts.of_resource(resource, one.amount[resource])})"
        for one in row.holders
        if resource in one.amount
    ]
    more = [f"{len(told) - SHOWN_HOLDERS} more"] if len(told) > SHOWN_HOLDERS else []
    return f"Held by {', '.join([*told[:SHOWN_HOLDERS], *more])}." if told else ""


def needs(row: bodies.QueueRow) -> str:
    """Return `2 GPUs`, or `4 CPUs` where it needs no device; empty for a job that runs."""
    if row.needs is None:
        return ""
    devices = row.needs.devices
    return amounts.of_resource("gpus", devices) if devices else amounts.of_resource("cpus", row.needs.cpus_milli / 1000)


def _end(job: bodies.ExpectedEnd, now: float) -> str:
    if job.end is not None and job.end > now:
        return f"It should end in about {durations.age(job.end - now)}."
    if job.latest is not None and job.latest > now:
        return f"Its time-out ends it within {durations.age(job.latest - now)}."
    return ""


def _nodes(forecast: plans.Forecast) -> Iterator[str]:
    """Yield a line for each node: `n0: worker-0, worker-1 (GPUs 0-1)`."""
    tasks: dict[str, list[str]] = {}
    devices: dict[str, list[int]] = {}
    for holding in forecast.placement:
        tasks.setdefault(holding.node, []).append(f"{holding.role}-{holding.index}")
        devices.setdefault(holding.node, []).extend(holding.devices)
    for node, names in list(tasks.items())[:SHOWN_NODES]:
        yield f"{node}: {', '.join(names)}{amounts.gpus(devices[node])}"
    if len(tasks) > SHOWN_NODES:
        yield f"and {amounts.counted(len(tasks) - SHOWN_NODES, 'more node')}"


def _holders(refusal: refusals.Refusal) -> str:
    """Return `Held by big (2 GPUs).`: the holders of the resource that the job lacks."""
    resource = next((name for name in ("gpus", "cpus", "memory") if refusal.needed.get(name)), "cpus")
    told = [
        f"{one.name} ({amounts.of_resource(resource, one.amount[resource])})"
        for one in refusal.holders
        if resource in one.amount
    ]
    return f"Held by {', '.join(told)}." if told and refusal.code == "no_capacity" else ""
