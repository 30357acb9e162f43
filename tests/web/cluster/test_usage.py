"""The page of usage: days, users and pools, with their sums, for the reader's own jobs or for all; as CSV, too."""

from __future__ import annotations

import pytest
from tests.api.cluster import test_history
from tests.web import browsers

DAY_S = 86_400.0


async def page(rig: browsers.WebRig, path: str, who: str = "root") -> str:
    async with rig.browser(who) as browser:
        answer = await browser.get(path)
    assert answer.status_code == 200, answer.text
    return answer.text


async def test_days_have_their_parts_and_users_their_sums(rig: browsers.WebRig) -> None:
    rig.clock.now = (rig.clock.now // DAY_S + 1) * DAY_S - 3600
    await test_history.ran(rig, "over-night", 3 * 3600)
    await test_history.ran(rig, "theirs", 3600, "bob")
    found = await page(rig, "/usage")
    browsers.elements(found)
    text = browsers.text(found)
    assert text.index("2023-11-15") < text.index("2023-11-14"), "the newest day is first"
    assert "8.00" in text, "the sum of all: 2 GPUs for 4 hours"
    assert "2023-11-14" not in browsers.text(await page(rig, "/usage?span=1d"))
    users = browsers.text(await page(rig, "/usage?by=user"))
    assert users.index("ann") < users.index("bob"), "the greatest use is first"
    mine = browsers.text(await page(rig, "/usage?by=user", "bob"))
    assert "ann" not in mine
    assert "2.00" in mine


async def test_the_sum_of_a_span_is_the_same_by_day_user_pool_and_type(rig: browsers.WebRig) -> None:
    rig.clock.now = (rig.clock.now // DAY_S + 1) * DAY_S - 2 * 3600
    await test_history.ran(rig, "long", 3 * 3600)
    for by in ("day", "user", "pool", "gpu_type"):
        *rows, last = (await page(rig, f"/usage?span=1d&by={by}&csv=usage")).splitlines()[1:]
        told = [sum(float(row.split(",")[column]) for row in rows) for column in range(1, 6)]
        assert told == pytest.approx([2.0, 1.5, 0.5, 1.0, 36.0]), "two GPUs for the hour of today"
        assert [float(cell) for cell in last.split(",")[1:]] == pytest.approx(told)


async def test_the_rows_as_csv_and_unknown_choices(rig: browsers.WebRig) -> None:
    await test_history.ran(rig, "run", 3600, "bob")
    assert (await page(rig, "/usage?by=gpu_type&csv=usage")).splitlines() == [
        "GPU type,GPU-hours,Useful,Idle,CPU-hours,Cost",
        "h100,2.0,1.5,0.5,1.0,36.0",
        "Sum,2.0,1.5,0.5,1.0,36.0",
    ]
    assert (await page(rig, "/usage?by=planet&span=1000d&csv=usage")).startswith("Day,")


async def test_the_command_asks_for_what_the_page_shows(rig: browsers.WebRig) -> None:
    rig.clock.now = 20_000 * DAY_S + 3600
    assert "oarlock usage --by gpu_type --since 2024-09-28T00:00:00Z" in await page(rig, "/usage?by=gpu_type&span=7d")


async def test_nothing_was_used(rig: browsers.WebRig) -> None:
    assert "The hours of jobs will appear here" in browsers.text(await page(rig, "/usage", "ann"))
