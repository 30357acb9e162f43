"""The outcome of one job, from its record, its holdings and its work. Times are seconds from the beginning."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from oarlock.simulator.engine import work
from oarlock.simulator.outcomes import outcome
from oarlock.spec import jobs


def of(job: jobs.Job, spans: Sequence[outcome.Span], did: work.Work, *, origin: float, now: float) -> outcome.JobStory:
    arrived = job.created_at - origin
    ended = None if job.ended_at is None else job.ended_at - origin
    return outcome.JobStory(
        job=job.id,
        arrived=arrived,
        phase=str(job.phase),
        reason=job.reason,
        first_start=spans[0].start if spans else None,
        ended=ended,
        starts=len(spans),
        waited_s=(now - origin if ended is None else ended) - arrived - sum(span.end - span.start for span in spans),
        held_device_s=sum((span.end - span.start) * span.devices for span in spans),
        advanced_device_s=did.device_s,
        lost_device_s=did.lost_device_s,
    )


def merged(name: str, members: Sequence[outcome.JobStory]) -> outcome.JobStory:
    """Return the story of a gang with tasks that were jobs of their own.

    It starts when the last of them does and ends with the last of them. Its phase and reason are those of the first
    member that differs from the others.
    """
    if len(members) == 1:
        return msgspec.structs.replace(members[0], job=name)
    starts = [one.first_start for one in members if one.first_start is not None]
    ends = [one.ended for one in members if one.ended is not None]
    odd = next((one for one in members if one.phase != members[0].phase), members[0])
    return outcome.JobStory(
        job=name,
        arrived=members[0].arrived,
        phase=odd.phase,
        reason=odd.reason,
        first_start=max(starts) if len(starts) == len(members) else None,
        ended=max(ends) if len(ends) == len(members) else None,
        starts=max(one.starts for one in members),
        waited_s=max(one.waited_s for one in members),
        held_device_s=sum(one.held_device_s for one in members),
        advanced_device_s=sum(one.advanced_device_s for one in members),
        lost_device_s=sum(one.lost_device_s for one in members),
    )


def relative(stretch: tuple[float, float] | None, origin: float) -> tuple[float, float]:
    """Return a time span relative to `origin`; (0, 0) for None."""
    return (0.0, 0.0) if stretch is None else (stretch[0] - origin, stretch[1] - origin)
