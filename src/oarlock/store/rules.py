"""The rules that every implementation of the store checks before it writes: pure checks, and the records of a change.

They do not depend on how rows are kept. Rules that do (one holder for each device, one job for each key) are
constraints of the tables, and these checks only give them words.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from oarlock.spec import attempts, errors, events, holdings, intents, jobs, phases, summaries
from oarlock.spec.access import users
from oarlock.spec.cluster import nodes
from oarlock.store import stores

MAX_NUMBER = 2**63 - 1
"""The greatest `seq`, and whatever else a caller may count with."""

MILLI = 1000
"""Thousandths of a device: as many as its shares may be together."""

SEARCHED_CHARACTERS = 2000
"""The most characters of a command in which a search looks."""

Note = tuple[str, dict[str, Any]]
"""A record to be: its kind and its data."""


class Versioned(Protocol):
    """A node, pool or user: something with a name that is written by compare and swap."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...


def active(job: jobs.Job) -> bool:
    """Return whether a controller has to look at the job.

    It has not when the job is terminal, nor when it is halted, released and meant to stay so.
    """
    if job.terminal:
        return False
    return job.phase is not phases.Phase.HALTED or job.live is not None or job.intent is not intents.Intent.HALT


_SHORT_ID = re.compile(rf"[0-9a-z]{{{jobs.SHORT_ID}}}")


def is_short_id(text: str) -> bool:
    """Return whether `text` may be the end of an id as lists show it."""
    return _SHORT_ID.fullmatch(text) is not None


def searched(job: jobs.Job) -> str:
    """Return the text in which a search looks: the name and the command, in one case of letters."""
    return f"{job.name}\n{summaries.command(job)[:SEARCHED_CHARACTERS]}".casefold()


def storable(text: str) -> bool:
    """Return whether any stored text could equal this one: no database keeps NUL or half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def check_new(job: jobs.Job) -> None:
    """Raise InvalidInput for names that no database could give back."""
    for field in ("id", "name", "owner", "pool"):
        value = getattr(job, field)
        if not value or not storable(value):
            raise errors.InvalidInput(f"{value!r} cannot be stored", path=field, hint="Use printable text without NUL.")


def check_change(stored: jobs.Job | None, job: jobs.Job) -> jobs.Job:
    """Return the stored job, when `job` may take its place."""
    if stored is None:
        raise unknown_job(job.id)
    if stored.terminal:
        raise errors.Conflict(
            f"job {job.id} is {stored.phase} and never changes again", hint="Submit a new job to run it once more."
        )
    if stored.version != job.version:
        raise changed("job", job.id, stored.version, job.version)
    if (stored.name, stored.owner, stored.created_at) != (job.name, job.owner, job.created_at):
        raise errors.Conflict(f"job {job.id} keeps its name, owner and time", hint="Submit a new job instead.")
    return stored


def check_swap(kind: str, stored_version: int | None, item: Versioned) -> None:
    """Check that `item` was made from the stored version; version 0 is not stored yet. Raises VersionMismatch."""
    if (stored_version or 0) != item.version:
        raise changed(kind, item.name, stored_version or 0, item.version)


def changed(kind: str, name: str, stored: int, given: int) -> errors.VersionMismatch:
    return errors.VersionMismatch(
        f"{kind} {name} is at version {stored}, not {given}",
        hint="Read it again, look whether the change is still wanted, and repeat it.",
        detail={"version": stored},
    )


def id_taken(job_id: str) -> errors.Conflict:
    return errors.Conflict(f"there is a job {job_id} already", hint="Make a new id for a new job.")


def unknown_job(job_id: str) -> errors.NotFound:
    return errors.NotFound(f"there is no job {job_id}", hint="It was removed: list the jobs again.")


def unknown_user(name: str) -> errors.NotFound:
    return errors.NotFound(f"there is no user {name}", hint="Make the user first.")


def check_session(token: users.Token | None, session: users.Session) -> None:
    """Raise NotFound unless the session's token exists and is its user's."""
    if token is None or token.user != session.user:
        raise errors.NotFound(
            f"{session.user} has no such token", hint="Log in with a token that the server knows, or ask for a new one."
        )


def in_use(node: str, holder: str) -> errors.Conflict:
    return errors.Conflict(
        f"job {holder} holds something on node {node}",
        hint="Wait for its release, or cancel the job.",
        detail={"job": holder},
    )


def has_jobs(pool: str, job: str) -> errors.Conflict:
    return errors.Conflict(
        f"job {job} is in pool {pool}", hint="Wait for its end, or cancel it.", detail={"pool": pool, "job": job}
    )


def owns_jobs(user: str, job: str) -> errors.Conflict:
    return errors.Conflict(
        f"job {job} of {user} is not over", hint="Wait for its end, or cancel it.", detail={"user": user, "job": job}
    )


def name_taken(job: jobs.Job, holder: str) -> errors.NameTaken:
    return errors.NameTaken(
        f"{job.owner} has an active job of the name {job.name!r} already: {holder}",
        path="name",
        hint="Choose another name, or cancel or halt that job first.",
        detail={"job": holder},
    )


def key_taken(owner: str, key: str) -> errors.Conflict:
    return errors.Conflict(
        f"{owner} has used the idempotency key {key!r} already", hint="Use a new key for a new request."
    )


def check_removal(job: jobs.Job, *, holds: bool) -> None:
    if not job.terminal:
        raise errors.Conflict(f"job {job.id} is {job.phase}, it cannot be removed", hint="Cancel it first.")
    if holds:
        raise errors.Conflict(f"job {job.id} still holds something", hint="Try again when it has been released.")


def check_claims(
    claims: Sequence[holdings.Holding],
    known: Mapping[str, nodes.Node],
    used: Mapping[str, holdings.Resources],
    taken: Mapping[tuple[str, str, int], str],
    shared: Mapping[tuple[str, int], int],
) -> None:
    """Check that all claims fit beside the present holdings.

    `known` has the nodes by name, `used` the sums held on each, `taken` the sole holder of (node, `device` or `port`,
    number), `shared` how many thousandths of (node, device) are held as shares. Raises AlreadyHeld with the holder or
    the numbers, and Conflict when the node has no such thing (any more).
    """
    wanted: dict[str, holdings.Resources] = {}
    mine: dict[tuple[str, str, int], str] = {}
    shares = dict(shared)
    for claim in claims:
        node = known.get(claim.node)
        if node is None:
            raise errors.Conflict(f"there is no node {claim.node}", hint="Look at the nodes again and plan anew.")
        for kind, number in slots(claim):
            _check_slot(node, kind, number)
            if (holder := taken.get((node.name, kind, number)) or mine.get((node.name, kind, number))) is not None:
                raise held(node.name, kind, number, holder)
            if kind == "device" and (milli := shares.get((node.name, number))):
                raise shared_out(node.name, number, milli, MILLI)
            mine[node.name, kind, number] = claim.job
        if (share := share_of(claim)) is not None:
            _check_slot(node, "device", share[0])
            if holder := taken.get((node.name, "device", share[0])) or mine.get((node.name, "device", share[0])):
                raise held(node.name, "device", share[0], holder)
            milli = shares.get((node.name, share[0]), 0)
            if milli + share[1] > MILLI:
                raise shared_out(node.name, share[0], milli, share[1])
            shares[node.name, share[0]] = milli + share[1]
        wanted[node.name] = wanted.get(node.name, holdings.Resources()) + claim.amount
    for name, amount in wanted.items():
        _check_sum(known[name], used.get(name, holdings.Resources()), amount)


def slots(claim: holdings.Holding) -> list[tuple[str, int]]:
    """Return the parts of a node that can have one holder only: ports, and devices that are not shared."""
    whole = () if claim.amount.gpu_milli else claim.devices
    return [("device", number) for number in whole] + [("port", number) for number in claim.ports]


def is_of(claim: holdings.Holding, attempt: int, tasks: Collection[str] | None) -> bool:
    """Return whether the claim is the attempt's, and one of these tasks' where they are named."""
    return claim.attempt == attempt and (tasks is None or claim.task in tasks)


def share_of(claim: holdings.Holding) -> tuple[int, int] | None:
    """Return the device and the thousandths of it, where the claim is for a share. Raises Conflict for an invalid
    share.
    """
    milli = claim.amount.gpu_milli
    if not milli:
        return None
    if len(claim.devices) != 1 or claim.amount.gpus or not 0 < milli < MILLI:
        raise errors.Conflict(
            f"{claim.role}-{claim.index} of job {claim.job} claims {milli} thousandths of devices {claim.devices}",
            hint="A share is of one device, and less than all of it. This is a defect: report it.",
        )
    return claim.devices[0], milli


def shared_out(node: str, device: int, used: int, wanted: int) -> errors.AlreadyHeld:
    return errors.AlreadyHeld(
        f"{MILLI - used} thousandths of device {device} of node {node} are left, {wanted} are asked for",
        hint="Look at the holdings again and plan anew.",
        detail={"node": node, "device": device, "free": MILLI - used, "needed": wanted},
    )


def held(node: str, kind: str, number: int, holder: str) -> errors.AlreadyHeld:
    return errors.AlreadyHeld(
        f"{kind} {number} of node {node} is held by job {holder}",
        hint="Look at the holdings again and plan anew.",
        detail={"node": node, kind: number, "job": holder},
    )


def claimed(claim: holdings.Holding) -> errors.AlreadyHeld:
    return errors.AlreadyHeld(
        f"{claim.role}-{claim.index} of job {claim.job}, attempt {claim.attempt}, is on {claim.node} already",
        hint="Release the attempt first.",
    )


def _check_slot(node: nodes.Node, kind: str, number: int) -> None:
    if kind == "device":
        there = any(device.index == number for device in node.devices)
    else:
        there = node.ports is not None and node.ports[0] <= number <= node.ports[1]
    if not there:
        raise errors.Conflict(f"node {node.name} has no {kind} {number}", hint="Look at the nodes again and plan anew.")


def _check_sum(node: nodes.Node, used: holdings.Resources, wanted: holdings.Resources) -> None:
    for resource in ("cpus_milli", "memory_bytes"):
        total, have, want = (getattr(part, resource) for part in (node.capacity, used, wanted))
        if want and have + want > total:
            raise errors.AlreadyHeld(
                f"node {node.name} has {total - have} {resource} left of {total}, {want} are asked for",
                hint="Look at the holdings again and plan anew.",
                detail={"node": node.name, "resource": resource, "free": total - have, "needed": want},
            )


def submitted(job: jobs.Job) -> Note:
    facts: dict[str, Any] = {"name": job.name, "owner": job.owner, "pool": job.pool}
    if job.continues is not None:
        facts |= {"continues": job.continues.job, "step": job.continues.step}
    return "submitted", facts


def removed(job: jobs.Job) -> Note:
    """Return the record of a removal. It names the owner: the readers of the line can no longer be asked of the job."""
    return "removed", {"name": job.name, "owner": job.owner, "phase": str(job.phase)}


def of_cluster(kind: str, names: Collection[str]) -> Note:
    """Return the record of a change of nodes or pools, with the first of their names."""
    return kind, {"names": sorted(names)[: events.MOST_NAMES], "count": len(names)}


def of_change(before: jobs.Job, after: jobs.Job, happened: Iterable[events.AnyEvent]) -> list[Note]:
    """Return a record for each event that is logged, in their order, then one for a change of phase."""
    notes: list[Note] = []
    for event in happened:
        if isinstance(event, events.Measured) or (
            isinstance(event, events.TaskReported) and not _news(event, before, after)
        ):
            continue
        data = msgspec.to_builtins(event)
        kind = data.pop("event")
        if isinstance(event, events.TaskEvent):
            data = data.pop("key") | data  # one flat record, without the job: the line names it already
            del data["job"]
        if isinstance(event, events.TaskReported):
            data = {
                key: value for key, value in data.items() if key not in ("progress", "idle_s") and value is not None
            }
        notes.append((kind, data))
    if before.phase is not after.phase:
        notes.append(("phase", {"from": str(before.phase), "to": str(after.phase), "reason": after.reason}))
    return notes


def _news(report: events.TaskReported, before: jobs.Job, after: jobs.Job) -> bool:
    """Return whether a report said more than progress: agents may repeat their phase with each one."""
    was, now = _task(before, report), _task(after, report)
    if was is None or now is None:
        return was is not now
    return (was.phase, was.can_rejoin, was.lost_round) != (now.phase, now.can_rejoin, now.lost_round)


def _task(job: jobs.Job, report: events.TaskReported) -> attempts.Task | None:
    attempt = next((one for one in job.attempts if one.number == report.key.attempt), None)
    return attempt.task(report.key.role, report.key.index) if attempt is not None else None


def compacted(after: int, floor: int) -> errors.Gone:
    """Return the error for a part of the log that is gone. `floor` is the first `seq` that may still be there."""
    return errors.Gone(
        f"the event log begins at {floor}; what followed {after} was compacted",
        hint=f"List what you need again, then read on after {floor - 1}.",
        detail={"first": floor},
    )


def as_listed(last: jobs.Job, phase: phases.Phase | None) -> jobs.Job:
    """Return the last job of a page as the page had it."""
    return last if phase is None else msgspec.structs.replace(last, phase=phase)


def page_gone(after: str) -> errors.Gone:
    return errors.Gone(f"job {after} is no longer there, to list from", hint="List again from the first page.")


def lead(row: stores.Leader, holder: str, now: float, ttl_s: float) -> stores.Leader | None:
    """Return the leader's row after `holder` asked to lead, or None while another's lease lasts. A row without holder
    is free.
    """
    if row.holder == holder:
        return stores.Leader(holder, row.epoch, now + ttl_s)
    if row.holder and row.expires_at > now:
        return None
    return stores.Leader(holder, row.epoch + 1, now + ttl_s)


def resign(row: stores.Leader, holder: str, epoch: int) -> stores.Leader:
    """Return the row after `holder` has given up `epoch`: the number stays, so that the next one is greater."""
    return stores.Leader("", row.epoch, 0.0) if (row.holder, row.epoch) == (holder, epoch) else row


def check_epoch(row: stores.Leader, epoch: int) -> None:
    if not row.holder or row.epoch != epoch:
        raise stale(epoch, row.epoch)


def stale(epoch: int, present: int) -> errors.StaleEpoch:
    return errors.StaleEpoch(
        f"epoch {epoch} leads no more, the present one is {present}",
        hint="Stop acting as the leader; take the leadership again first.",
        detail={"epoch": present},
    )


def spread(times: Sequence[float], limit: int) -> list[float]:
    """Return `limit` of these times at most, equally far apart in the list, with the last one."""
    step = -(-len(times) // limit)
    return list(times[(len(times) - 1) % step :: step]) if step > 1 else list(times)
