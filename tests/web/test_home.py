"""The home page: what waits, in the order of the queue, and when each job should start."""

from __future__ import annotations

import pytest
from tests.api.jobs import test_outlook
from tests.web import browsers


async def test_a_waiting_job_has_its_expected_start(rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.take_time(monkeypatch)
    await test_outlook.fill(rig, "big", 2, timeout="1h")
    await rig.submit("bob", name="low", priority=10, roles={"worker": {"gpus": 2}})
    rig.clock.now += 1
    await rig.submit("ann", name="high", priority=90, timeout="30m", roles={"worker": {"gpus": 2}})
    async with rig.browser("ann") as browser:
        page = (await browser.get("/")).text
    browsers.elements(page)
    text = browsers.text(page)
    assert text.index("high") < text.index("low"), "in the order of the queue"
    assert text.count("It should start") == 2


async def test_nothing_waits(rig: browsers.WebRig) -> None:
    async with rig.browser("ann") as browser:
        assert "No job waits" in browsers.text((await browser.get("/")).text)
