# Made by `make sdk` from `asynchronous/caller.py`: change that file, not this one.
"""The object that all verbs of the SDK share: the settings of a client, and the sender of its requests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from oarlock.client import settings
from oarlock.client.synchronous import sender, waiting

if TYPE_CHECKING:
    import httpx


class Caller:
    """A sender of requests to one server, without verbs. It is opened at the first request, and closed by `close`."""

    def __init__(
        self,
        server: str | None = None,
        token: str | None = None,
        *,
        ca_file: str | None = None,
        timeout_s: float = 30.0,
        told: settings.Settings | None = None,
        transport: httpx.BaseTransport | None = None,
        sleep: waiting.Sleep = waiting.sleep,
    ) -> None:
        self.settings = told or settings.from_environment(server=server, token=token, ca_file=ca_file)
        self._sleep = sleep
        self._sender = sender.Sender(self.settings, timeout_s=timeout_s, transport=transport, sleep=sleep)

    def close(self) -> None:
        self._sender.close()

    @property
    def url(self) -> str:
        return self._sender.place.url

    @property
    def loopback(self) -> bool:
        """Whether the server is on this machine."""
        return self._sender.place.loopback

    def clock_skew_s(self, clock: Callable[[], float] = time.time) -> float | None:
        """Return the seconds that the server's clock is ahead, by its last answer; None before the first answer."""
        from email.utils import parsedate_to_datetime

        try:
            return parsedate_to_datetime(self._sender.server_date or "").timestamp() - clock()
        except (ValueError, TypeError):
            return None
