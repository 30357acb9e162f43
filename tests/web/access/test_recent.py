"""The server's state, which the pages of all administrators share for some seconds."""

from __future__ import annotations

import pytest
from tests.web import browsers

from oarlock.api.administration import server
from oarlock.spec import bodies
from oarlock.web.access import recent


async def test_the_state_is_asked_for_again_after_some_seconds() -> None:
    now, asked = [100.0], 0

    async def ask() -> bodies.ServerState:
        nonlocal asked
        asked += 1
        return bodies.ServerState(settings={}, problems={}, users=asked)

    known = recent.RecentState(lambda: now[0])
    told = []
    for wait in (0.0, recent.KEPT_S - 1, 1.0):
        now[0] += wait
        told.append((await known.find(ask)).users)
    assert told == [1, 1, 2]


async def test_administrators_share_what_costs_much_to_find(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(server, "file_skew_s", lambda home, clock: asked.append(home))
    for name in ("root", "root", "ann"):
        async with rig.browser(name) as browser:
            assert (await browser.get("/")).status_code == 200
    assert len(asked) == 1
