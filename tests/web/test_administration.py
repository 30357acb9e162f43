"""The pages of administrators: users with their tokens, and the state of the server."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.web import browsers

from oarlock import configuration


async def send(rig: browsers.WebRig, **form: Any) -> httpx.Response:
    async with rig.browser("root") as browser:
        answer = await browser.post("/users", data=form, headers=browsers.OURS)
    if answer.status_code != 303:
        browsers.elements(answer.text)
    return answer


async def show(rig: browsers.WebRig, path: str) -> str:
    async with rig.browser("root") as browser:
        answer = await browser.get(path)
    assert answer.status_code == 200, answer.text
    browsers.elements(answer.text)
    return answer.text


async def test_a_user_is_added_and_logs_in_with_the_token_that_is_shown_once(rig: browsers.WebRig) -> None:
    added = await send(rig, action="add", user="eve", right="viewer")
    token = added.text.partition("<code data-copy>")[2].partition("</code>")[0]
    async with rig.browser() as browser:
        assert (await browser.post("/login", data={"secret": token}, headers=browsers.OURS)).status_code == 303
        assert "viewer" in (await browser.get("/sessions")).text
    assert token not in await show(rig, "/users?user=eve")
    again = await send(rig, action="add", user="eve", right="viewer")
    assert (again.status_code, 'value="eve"' in again.text) == (409, True)


async def test_a_token_is_made_listed_and_revoked(rig: browsers.WebRig) -> None:
    await send(rig, action="token", user="ann", note="=laptop <b>")
    page = await show(rig, "/users?user=ann")
    assert "=laptop &lt;b&gt;" in page
    found = await rig.store.read(lambda view: view.tokens("ann"))
    mine = next(one for one in found if one.note)
    assert mine.sha256 in page
    revoked = await send(rig, action="revoke", user="ann", sha256=mine.sha256)
    assert (revoked.status_code, revoked.headers["location"]) == (303, "/users?user=ann")
    assert await rig.store.read(lambda view: view.token(mine.sha256)) is None
    assert mine.sha256 not in await show(rig, "/users?user=ann")


@pytest.mark.parametrize(
    ("form", "status"),
    [
        ({"action": "add", "user": "a/b"}, 422),
        ({"action": "add", "user": "x", "right": "king"}, 422),
        ({"action": "token", "user": "nobody-here"}, 404),
        ({"action": "revoke", "user": "ann", "sha256": "../x"}, 404),
        ({"action": "burn"}, 422),
    ],
)
async def test_a_refused_form_changes_nothing(rig: browsers.WebRig, form: dict[str, str], status: int) -> None:
    before = await rig.store.read(lambda view: (view.users(), view.tokens("ann")))
    assert (await send(rig, **form)).status_code == status
    assert await rig.store.read(lambda view: (view.users(), view.tokens("ann"))) == before


async def test_the_server_tells_its_health_leader_and_settings(rig: browsers.WebRig) -> None:
    rig.problems["store"] = "no space <b>"
    page = await show(rig, "/server")
    assert "not ready" in page
    assert "no space &lt;b&gt;" in page
    rig.problems.clear()
    assert "✓" in await show(rig, "/server")


def test_the_shown_settings_have_no_password() -> None:
    told = configuration.read({"OARLOCK_HOME": "/tmp/h", "OARLOCK_DATABASE": "postgresql://u:hush@db:5/oarlock?a=b"})
    assert told.shown["database"] == "postgresql://db/oarlock"
    assert "hush" not in repr(told.shown)
    assert told.shown["policy"] == told.policy


async def test_menus_show_only_what_the_right_allows(rig: browsers.WebRig) -> None:
    async with rig.browser("vera") as browser:
        page = (await browser.get("/")).text
    assert 'href="/submit"' not in page
    assert 'href="/users"' not in page
    assert 'href="/users"' in await show(rig, "/")
