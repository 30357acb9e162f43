"""The pages of administrators: users with their tokens, and the state of the server."""

from __future__ import annotations

import asyncio
import re
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
    asked = await send(rig, action="revoke", user="ann", sha256=mine.sha256)
    assert (asked.status_code, "the sessions that were made from it end" in asked.text) == (200, True)
    assert "It is yours" not in asked.text
    assert await rig.store.read(lambda view: view.token(mine.sha256)) == mine, "nothing is lost before the answer"
    revoked = await send(rig, action="revoke", user="ann", sha256=mine.sha256, sure="yes")
    assert (revoked.status_code, revoked.headers["location"]) == (303, "/users?user=ann")
    assert await rig.store.read(lambda view: view.token(mine.sha256)) is None
    assert mine.sha256 not in await show(rig, "/users?user=ann")


async def test_times_of_users_and_tokens_are_told_as_on_the_other_pages(rig: browsers.WebRig) -> None:
    """In words that go on by themselves. The file of the table has the exact times."""
    await send(rig, action="add", user="eve", right="viewer")
    rig.clock.now += 180
    page = await show(rig, "/users?user=eve")
    assert re.findall(r'<time data-form="ago" datetime="(2023-11-14T22:13:20\.0Z)">3m ago</time>', page) != []
    assert browsers.text(page).count("3m ago") == 2, "the user, and the first token"
    assert not re.search(r"\dZ<", page)
    async with rig.browser("root") as browser:
        file = (await browser.get("/users?csv=users")).text
    assert "eve,viewer,2023-11-14T22:13:20.0Z" in file


async def test_the_command_that_adds_a_user_names_the_right(rig: browsers.WebRig) -> None:
    """Without it the command makes a user with another right than the form."""
    assert "oarlock users add NAME --right RIGHT" in await show(rig, "/users")


async def test_an_administrator_is_told_that_the_own_session_may_end(rig: browsers.WebRig) -> None:
    mine = (await rig.store.read(lambda view: view.tokens("root")))[0]
    assert "It is yours" in (await send(rig, action="revoke", user="root", sha256=mine.sha256)).text


async def test_a_user_is_removed_once_the_page_has_told_what_is_lost(rig: browsers.WebRig) -> None:
    ended = await rig.end((await rig.launch(await rig.submit("ann", name="ended"))).id)
    waits = await rig.submit("ann", name="waits")
    assert "oarlock users remove ann" in await show(rig, "/users?user=ann")
    assert 'value="remove"' not in await show(rig, "/users?user=root"), "it is not offered for oneself"
    mine = await send(rig, action="remove", user="root")
    assert ("You cannot remove yourself" in mine.text, 'value="remove"' in mine.text) == (True, False)
    asked = await send(rig, action="remove", user="ann")
    assert (asked.status_code, 'value="remove"' in asked.text) == (200, False)
    assert "A user is removed once its jobs have ended" in browsers.text(asked.text)
    refused = await send(rig, action="remove", user="ann", sure="yes")
    assert refused.status_code == 409
    assert "ann has jobs that have not ended: waits." in browsers.text(refused.text)
    assert f"oarlock cancel {waits.id}" in browsers.text(refused.text)
    async with rig.as_user("ann") as http:
        await http.put(f"/api/v1/jobs/{waits.id}/intent", json={"intent": "cancel"})
    told = browsers.text((await send(rig, action="remove", user="ann")).text)
    assert "Tokens1Jobs that have not ended0Jobs that have ended2" in told
    assert "tokens are revoked, its sessions end within a second, and its secrets are deleted" in told
    assert "oarlock users remove ann" in told
    assert await rig.store.read(lambda view: view.user("ann")), "nothing is lost before the answer"
    async with rig.browser("ann") as browser:
        assert (await browser.get("/jobs")).status_code == 200
        gone = await send(rig, action="remove", user="ann", sure="yes")
        assert (gone.status_code, gone.headers["location"]) == (303, "/users")
        assert (await browser.get("/jobs")).status_code == 303, "the session has ended"
    assert "Tokens of ann" not in browsers.text(await show(rig, "/users"))
    assert "ann" in browsers.text(await show(rig, f"/jobs/{ended.id}")), "its jobs keep the name"


async def test_a_page_that_is_loaded_again_makes_no_other_token(rig: browsers.WebRig) -> None:
    async with rig.browser("root") as browser:
        page = (await browser.get("/users?user=ann")).text
        number = page.partition('name="number" value="')[2].partition('"')[0]
        form = {"action": "token", "user": "ann", "note": "laptop", "number": number}
        first, again = await asyncio.gather(
            *(browser.post("/users", data=form, headers=browsers.OURS) for _ in range(2))
        )
        assert sorted((first.status_code, again.status_code)) == [200, 409]
        refused = max(first, again, key=lambda one: one.status_code)
        assert "was sent before" in browsers.text(refused.text)
        assert 'value="laptop"' in refused.text
        found = await rig.store.read(lambda view: view.tokens("ann"))
        assert len([one for one in found if one.note == "laptop"]) == 1
        fresh = refused.text.partition('name="number" value="')[2].partition('"')[0]
        answer = await browser.post("/users", data={**form, "number": fresh}, headers=browsers.OURS)
        assert (fresh != number, answer.status_code) == (True, 200)


async def test_a_refused_form_comes_back_as_it_was_typed(rig: browsers.WebRig) -> None:
    king = await send(rig, action="add", user="eve", right="king")
    assert 'value="eve"' in king.text
    assert "There is no such right" in king.text
    taken = await send(rig, action="add", user="ann", right="viewer")
    assert "<option selected>viewer" in taken.text
    gone = ({"action": "token", "user": "gone"}, {"action": "remove", "user": "gone", "sure": "yes"})
    for form in (*gone, {"action": "revoke", "user": "ann", "sha256": ""}):
        answer = await send(rig, **form)
        assert (answer.status_code, "<h1>Users</h1>" in answer.text) == (404, True)
        assert "no such route" not in answer.text
    assert "Tokens of ann" in answer.text


@pytest.mark.parametrize(
    ("form", "status"),
    [
        ({"action": "add", "user": "a/b"}, 422),
        ({"action": "add", "user": "x", "right": "king"}, 422),
        ({"action": "token", "user": "nobody-here"}, 404),
        ({"action": "revoke", "user": "ann", "sha256": "../x"}, 404),
        ({"action": "burn"}, 422),
        ({"action": "remove", "user": "root", "sure": "yes"}, 409),
        ({"action": "remove", "user": "a/b", "sure": "yes"}, 422),
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


async def test_menus_show_only_entries_that_the_right_allows(rig: browsers.WebRig) -> None:
    async with rig.browser("vera") as browser:
        page = (await browser.get("/")).text
    assert 'href="/submit"' not in page
    assert 'href="/users"' not in page
    assert 'href="/users"' in await show(rig, "/")
