"""Pages of facts that no event tells: users, sessions and usage. They are live all the same, and look now and then."""

from __future__ import annotations

import re

import pytest
from tests.api.cluster import test_history
from tests.web import browsers

from oarlock.spec import phases
from oarlock.web.pages.administration import sessions, users
from oarlock.web.updates import topics

FRAGMENT = {"Oarlock-Fragment": "1"}


@pytest.mark.parametrize(
    ("path", "period_s"),
    [
        ("/usage", topics.SLOW_S),
        ("/sessions", sessions.REFRESH_S),
        ("/users", users.REFRESH_S),
        ("/users?user=ann", users.REFRESH_S),
    ],
)
async def test_such_a_page_is_live_and_names_its_period(rig: browsers.WebRig, path: str, period_s: int) -> None:
    async with rig.browser("root") as browser:
        tag = re.search(r'<main id="content"[^>]*>', (await browser.get(path)).text)
    assert tag is not None
    assert f'data-live data-topics="" data-refresh="{period_s}"' in tag[0]


async def test_an_open_page_of_users_shows_the_one_that_another_administrator_has_added(rig: browsers.WebRig) -> None:
    async with rig.browser("root") as browser, rig.browser("root") as other:
        for path in ("/users", "/users?user=ann"):
            first = await browser.get(path, headers=FRAGMENT)
            name = f"eve-{len(path)}"
            form = {"action": "add", "user": name, "right": "viewer"}
            answer = await other.post("/users", data=form, headers=browsers.OURS)
            assert "data-live" not in answer.text, "its token is shown once, and stays"
            again = await browser.get(path, headers=FRAGMENT | {"If-None-Match": first.headers["etag"]})
            assert (name in browsers.text(first.text), name in browsers.text(again.text)) == (False, True)
        refused = await other.post("/users", data=form, headers=browsers.OURS)
        assert (refused.status_code, "data-live" in refused.text) == (409, False)
        mark = {"If-None-Match": (await browser.get("/users", headers=FRAGMENT)).headers["etag"]}
        rig.clock.now += 3600
        assert (await browser.get("/users", headers=FRAGMENT | mark)).status_code == 304, "only the time has gone on"


async def test_an_open_page_of_sessions_shows_a_new_one_and_which_is_its_own(rig: browsers.WebRig) -> None:
    async with rig.browser("ann", **{"User-Agent": "first"}) as browser:
        seq = {"Oarlock-Seq": str(await rig.store.read(lambda view: view.last_seq()))}
        first = await browser.get("/sessions", headers=FRAGMENT | seq)
        mark = {"If-None-Match": first.headers["etag"]}
        rig.clock.now += 3600
        assert (await browser.get("/sessions", headers=FRAGMENT | mark)).status_code == 304, "only the time has gone on"
        async with rig.browser("ann", **{"User-Agent": "second"}) as other:
            told = [(await one.get("/sessions", headers=FRAGMENT | seq)).text for one in (browser, other)]
    for own, text in zip(("first", "second"), map(browsers.text, told), strict=True):
        assert text.count("(this one)") == 1
        assert f"{own} (this one)" in text


async def test_an_open_page_of_usage_shows_the_hours_that_a_running_job_adds(rig: browsers.WebRig) -> None:
    job = await test_history.ran(rig, "over", 3600)
    assert job.phase in phases.TERMINAL
    async with rig.browser("ann") as browser:
        first = await browser.get("/usage?by=user", headers=FRAGMENT)
        mark = {"If-None-Match": first.headers["etag"]}
        assert (await browser.get("/usage?by=user", headers=FRAGMENT | mark)).status_code == 304
        await rig.launch(await rig.submit("ann", name="runs"))
        rig.clock.now += 7200
        later = await browser.get("/usage?by=user", headers=FRAGMENT | mark)
        assert later.status_code == 200
        assert later.text != first.text
