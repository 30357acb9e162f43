"""The life of the request for a gang's nodes: it is made, answered, made anew, or withdrawn."""

from __future__ import annotations

import msgspec

from oarlock.scheduler import wording
from oarlock.spec.cluster import provisioning

Answer = provisioning.Answer
replace = msgspec.structs.replace

AGAIN_S = 120.0
"""The time after which nodes that were not added are requested again."""

ARRIVAL_S = 600.0
"""The time that added nodes have to be there. An autoscaler keeps them for a gang about as long."""


def answered(
    request: provisioning.NodeRequest, seen: provisioning.Answered | None, now: float
) -> provisioning.NodeRequest:
    """Return the request with the autoscaler's answer, as it was `seen` at `now` (Unix seconds); None: not seen.

    Nodes that were added, but did not come in time, or too few of them, end the request.
    """
    if request.open and seen is not None and (seen.answer, seen.message) != (request.answer, request.message):
        since = request.answered_at if seen.answer is request.answer else now
        request = replace(request, answer=seen.answer, message=seen.message, answered_at=since)
    late = request.answered_at is not None and now - request.answered_at >= ARRIVAL_S
    if request.answer is Answer.PROVISIONED and late:
        said = f"too few of them were there after {wording.about(ARRIVAL_S)}"
        return replace(request, answer=Answer.EXPIRED, message=said, answered_at=now)
    return request


def following(
    request: provisioning.NodeRequest | None,
    need: provisioning.Need | None,
    now: float,
    *,
    answering: bool,
    last: int = 0,
) -> provisioning.NodeRequest | None:
    """Return the request that follows for a gang that lacks `need`; None where it lacks nothing.

    Without an autoscaler that answers, the request is a measurement: its numbers follow the need. `last` is the
    greatest number of the job's requests that the cluster may still have.
    """
    if need is None:
        return None
    if request is None:
        return provisioning.NodeRequest(number=last + 1, need=need, at=now)
    if not request.open:
        again = request.answered_at is None or now - request.answered_at >= AGAIN_S
        return provisioning.NodeRequest(number=request.number + 1, need=need, at=now) if again else request
    if request.need == need:
        return request
    if not answering:
        return replace(request, need=need)
    return provisioning.NodeRequest(number=request.number + 1, need=need, at=now)


def told(request: provisioning.NodeRequest, now: float) -> str:
    """Return a sentence about the nodes, the time of the request, and the autoscaler's answer."""
    nodes = listed(request.need)
    several = sum(request.need.nodes.values()) != 1
    made = f"{nodes} {'were' if several else 'was'} requested {wording.about(max(0.0, now - request.at))} ago"
    since = wording.about(max(0.0, now - (request.answered_at or now)))
    words = {
        Answer.NONE: "no autoscaler has answered yet",
        Answer.ACCEPTED: f"the autoscaler accepted that {since} ago",
        Answer.PROVISIONED: f"the autoscaler said {since} ago that {'they are' if several else 'it is'} there",
        Answer.FAILED: f"the autoscaler refused that {since} ago",
        Answer.EXPIRED: f"that request ended {since} ago",
    }[request.answer]
    message = f" ({request.message.rstrip('.')})" if request.message else ""
    again = "; it is made again soon" if not request.open else ""
    return f"{made}; {words}{message}{again}."


def listed(need: provisioning.Need) -> str:
    """Return `2 nodes of large and 1 node of small`."""
    return wording.listed(
        [f"{count} node{'' if count == 1 else 's'} of {name}" for name, count in sorted(need.nodes.items())]
    )
