"""The draft of a plan over a small cluster, given in the words of `tests/scheduler/scenario.py`."""

from __future__ import annotations

from tests.scheduler import scenario, world

from oarlock.scheduler import planning
from oarlock.scheduler.granting import drafts
from oarlock.scheduler.ordering import queues, turns
from oarlock.scheduler.reuse import memos
from oarlock.spec import holdings, plans

NOW = 10_000.0


def cluster(lines: str) -> world.World:
    """Return the cluster that these lines describe."""
    built = scenario.Cluster()
    for line in filter(None, map(str.strip, lines.splitlines())):
        built.do(line)
    return built.world


def draft(of: world.World | str, now: float = NOW, *, reallocate: bool = True) -> drafts.Draft:
    """Return the draft of a plan before its first decision."""
    described = cluster(of) if isinstance(of, str) else of
    return planning.begun(described.snapshot(reallocate=reallocate), now, memos.Memo())


def running(of: drafts.Draft, job: str) -> plans.Running:
    return of.running[job]


def turn(of: drafts.Draft, job: str, **wish: object) -> turns.Turn:
    """Return the turn of a gang, as if its policy wished this."""
    gang = next((gang for gang in of.snapshot.waiting if gang.job == job), None)
    (queue,) = of.order.queues.values()
    found = (
        of.order.turn(running(of, job)) if gang is None else next(one for one in queue if one.candidate.gang.job == job)
    )
    return world.replace(found, wish=world.replace(found.wish, **wish))


def wished(of: drafts.Draft, *wanted: turns.Turn, pool: str = "") -> None:
    """Let these turns be those of the policy. `pool` is empty where the only pool has no bound."""
    of.order.queues = {pool: queues.Listed(list(wanted))}


def places(claims: tuple[holdings.Holding, ...]) -> list[str]:
    """Return the places of a gang in short: `a[0]`, or `a[0]/2` for half of a device."""
    return [
        claim.node + (f"{list(claim.devices)}" if claim.devices else "") + ("/2" if claim.amount.gpu_milli else "")
        for claim in claims
    ]
