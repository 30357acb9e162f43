"""The holdings of each attempt over time, from the store's event log: from its admission to its release."""

from __future__ import annotations

from typing import Any

from oarlock.simulator.outcomes import outcome
from oarlock.spec import phases
from oarlock.store import stores

_PAGE = 1000


class Ledger:
    """Reads the event log step by step. Times are in seconds after `origin`."""

    def __init__(self, store: stores.Store, origin: float) -> None:
        self._store = store
        self._origin = origin
        self._seq = 0
        self._open: dict[str, tuple[int, float, Any]] = {}
        self._ended: list[str] = []
        self.spans: dict[str, list[outcome.Span]] = {}

    async def read(self) -> int:
        """Read on. Return the position in the log: older records may be deleted."""
        return await self._store.read(self._look)

    def take_ended(self) -> list[str]:
        """Return the jobs that have ended for good since the last call."""
        ended, self._ended = self._ended, []
        return ended

    async def close(self, now: float) -> None:
        """End all open holdings at `now`."""
        await self.read()
        for job_id in list(self._open):
            self._end(job_id, now)

    def _look(self, view: stores.View) -> int:
        seq = view.last_seq()
        while self._seq < seq:
            for record in view.records(self._seq, limit=_PAGE):
                self._seq = record.seq
                if record.kind == "admitted":
                    self._open[record.job] = (record.data["attempt"], record.at, record.data["holdings"])
                elif record.kind == "released":
                    self._end(record.job, record.at)
                elif record.kind == "phase" and record.data["to"] in phases.TERMINAL:
                    self._ended.append(record.job)
        return seq

    def _end(self, job_id: str, at: float) -> None:
        attempt, start, claims = self._open.pop(job_id)
        held: dict[str, list[int]] = {}
        for claim in claims:
            held.setdefault(claim["node"], []).extend(claim["devices"])
        self.spans.setdefault(job_id, []).append(
            outcome.Span(
                job=job_id,
                attempt=attempt,
                start=start - self._origin,
                end=at - self._origin,
                devices=sum(claim["amount"]["gpus"] + claim["amount"]["gpu_milli"] / 1000 for claim in claims),
                held=tuple((node, tuple(sorted(indexes))) for node, indexes in sorted(held.items())),
            )
        )
