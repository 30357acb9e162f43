"""The cluster's clock, as the dates of the API server's answers tell it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from email import utils


class ClusterClock:
    """Compares the cluster's clock with `clock`, ours (Unix seconds)."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heard: tuple[str, float] | None = None

    def hear(self, date: str) -> None:
        """Take note of the date of an answer that has just come, an empty text where it has none."""
        if date:
            self._heard = date, self._clock()

    def ours(self, at: float) -> float:
        """Return a time of a cluster that is ahead of us by our clock; of another cluster, as it is.

        A date has whole seconds, so the difference is found a second too small at most.
        """
        return at - max(0.0, self._ahead_s())

    def _ahead_s(self) -> float:
        if self._heard is not None:
            date, heard_at = self._heard
            with contextlib.suppress(ValueError):
                return utils.parsedate_to_datetime(date).timestamp() - heard_at
        return 0.0
