"""Sessions and login codes: how they begin, who may use them, and when they end."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.api import rig as rigs

from oarlock.api.administration import sessions
from oarlock.api.security import authentication
from oarlock.spec.access import users


async def code_of(rig: rigs.Rig, who: str) -> str:
    async with rig.as_user(who) as http:
        answer = await http.post("/api/v1/login-codes")
    assert answer.status_code == 201, answer.text
    return answer.json()["code"]


async def begin(rig: rigs.Rig, secret: str, **more: Any) -> httpx.Response:
    async with rig.client() as http:
        return await http.post("/api/v1/sessions", json={"secret": secret, **more})


async def session_of(rig: rigs.Rig, who: str) -> str:
    return (await begin(rig, await code_of(rig, who))).json()["secret"]


def as_session(rig: rigs.Rig, secret: str) -> httpx.AsyncClient:
    return rig.client({"Authorization": f"Bearer {secret}"})


async def status(rig: rigs.Rig, secret: str, path: str = "/api/v1/server") -> int:
    await rig.services.authenticator.forget()  # a moment later
    async with as_session(rig, secret) as http:
        return (await http.get(path)).status_code


@pytest.mark.parametrize("who", ["root", "ann", "vera"])
async def test_a_code_makes_one_session_with_its_users_right(rig: rigs.Rig, who: str) -> None:
    code = await code_of(rig, who)
    made = (await begin(rig, code, note="Firefox")).json()
    assert made["user"] == who
    assert (await begin(rig, code)).status_code == 401, "a code is good for one session"
    async with as_session(rig, made["secret"]) as http:
        assert (await http.get("/api/v1/server")).json()["user"] == who
        assert (await http.get("/api/v1/users")).status_code == (200 if who == "root" else 403)
        (listed,) = (await http.get("/api/v1/sessions")).json()["items"]
        assert (listed["note"], listed["current"]) == ("Firefox", True)
        assert (await http.post("/api/v1/login-codes")).status_code == 403, "no chain of sessions"
    stored = await rig.store.read(lambda view: view.sessions(who))
    assert code not in repr(stored)
    assert made["secret"] not in repr(stored)


async def test_a_token_makes_a_session_too_and_a_code_is_no_token(rig: rigs.Rig) -> None:
    assert (await begin(rig, rig.tokens["ann"])).json()["user"] == "ann"
    code = await code_of(rig, "ann")
    assert await status(rig, code) == 401
    session = await session_of(rig, "ann")
    for wrong in (session, "", "x" * 1000, authentication.digest(code), authentication.digest(session)):
        answer = await begin(rig, wrong)
        assert answer.status_code in (400, 401, 422), wrong
    assert (await begin(rig, code)).status_code == 201


async def test_a_wrong_secret_costs_no_transaction(rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(change: object) -> None:
        raise AssertionError("a transaction")

    monkeypatch.setattr(rig.store, "write", refuse)
    assert (await begin(rig, "oac_" + "A" * 43)).status_code == 401


async def test_a_code_is_good_for_a_minute(rig: rigs.Rig) -> None:
    assert (users.CODE_S, users.IDLE_S, users.SESSION_S) == (60.0, 12 * 3600.0, 7 * 24 * 3600.0)
    early, late = await code_of(rig, "ann"), await code_of(rig, "ann")
    rig.clock.now += users.CODE_S - 1
    assert (await begin(rig, early)).status_code == 201
    rig.clock.now += 1
    assert (await begin(rig, late)).status_code == 401


async def test_a_session_that_is_used_lasts_a_week_and_an_idle_one_half_a_day(rig: rigs.Rig) -> None:
    used, idle = await session_of(rig, "ann"), await session_of(rig, "ann")
    began = rig.clock.now
    while rig.clock.now < began + users.SESSION_S - users.IDLE_S:
        rig.clock.now += users.IDLE_S - 1
        assert await status(rig, used) == 200
    assert await status(rig, idle) == 401
    rig.clock.now = began + users.SESSION_S - 1
    assert await status(rig, used) == 200
    rig.clock.now += 1
    assert await status(rig, used) == 401


async def test_an_unused_session_ends_although_its_page_waits_for_events(rig: rigs.Rig) -> None:
    session = await session_of(rig, "ann")
    for _ in range(12):
        rig.clock.now += users.IDLE_S / 12 - 1
        assert await status(rig, session, "/api/v1/events?wait=0") == 200
    rig.clock.now += 12
    assert await status(rig, session) == 401


async def test_a_session_ends_with_its_token(rig: rigs.Rig) -> None:
    async with rig.as_user("root") as http:
        other = (await http.post("/api/v1/users/ann/tokens", json={})).json()
        session, code = await session_of(rig, "ann"), await code_of(rig, "ann")
        kept = (await begin(rig, other["token"])).json()["secret"]
        sha256 = authentication.digest(rig.tokens["ann"])
        async with as_session(rig, session) as ann:
            assert (await ann.get("/api/v1/server")).status_code == 200
            assert (await http.delete(f"/api/v1/users/ann/tokens/{sha256}")).status_code == 204
            assert (await ann.get("/api/v1/server")).status_code == 401, "at once"
        assert (await begin(rig, code)).status_code == 401
        assert await status(rig, kept) == 200


async def test_users_end_their_own_sessions_and_no_others(rig: rigs.Rig) -> None:
    mine, other, theirs = [await session_of(rig, who) for who in ("ann", "ann", "bob")]
    async with as_session(rig, mine) as http:
        assert (await http.delete(f"/api/v1/sessions/{authentication.digest(theirs)}")).status_code == 404
        assert (await http.delete(f"/api/v1/sessions/{authentication.digest(other)}")).status_code == 204
        assert (await http.delete("/api/v1/sessions/current")).status_code == 204
        assert (await http.get("/api/v1/sessions")).status_code == 401
    assert [await status(rig, one) for one in (mine, other, theirs)] == [401, 401, 200]
    async with rig.as_user("ann") as http:
        assert (await http.delete("/api/v1/sessions/current")).status_code == 404


async def test_the_oldest_of_many_sessions_ends(rig: rigs.Rig) -> None:
    first = await session_of(rig, "ann")
    for _ in range(sessions.MAX_SESSIONS):
        rig.clock.now += 0.1
        last = (await begin(rig, rig.tokens["ann"])).json()["secret"]
    assert (await status(rig, first), await status(rig, last)) == (401, 200)
    assert len(await rig.store.read(lambda view: view.sessions("ann"))) == sessions.MAX_SESSIONS
