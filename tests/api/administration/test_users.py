"""The removal of users: who must stay, what ends with a user, and what does not come back with the name."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from tests.api import rig as rigs
from tests.api import test_streams
from tests.api.security import test_sessions

from oarlock.api.jobs import events as event_routes
from oarlock.api.security import authentication, authorisation, secretfiles
from oarlock.spec import bodies, errors, events, intents
from oarlock.spec.access import users


async def remove(rig: rigs.Rig, name: str, who: str = "root") -> httpx.Response:
    async with rig.as_user(who) as http:
        return await http.delete(f"/api/v1/users/{name}")


async def names(rig: rigs.Rig) -> list[str]:
    return [one.name for one in await rig.store.read(lambda view: view.users())]


async def add(rig: rigs.Rig, name: str, right: str = "user") -> None:
    """Add a user with a token, which the rig knows from then on."""
    async with rig.as_user("root") as http:
        assert (await http.post("/api/v1/users", json={"name": name, "right": right})).status_code == 201
        rig.tokens[name] = (await http.post(f"/api/v1/users/{name}/tokens", json={})).json()["token"]


async def test_tokens_and_sessions_end_at_once_and_do_not_come_back_with_the_name(rig: rigs.Rig) -> None:
    job = await rig.end((await rig.launch(await rig.submit("ann", name="ended"))).id)
    session, code = await test_sessions.session_of(rig, "ann"), await test_sessions.code_of(rig, "ann")
    old = rig.tokens["ann"]
    async with rig.as_user("ann") as by_token, test_sessions.as_session(rig, session) as by_session:
        for http in (by_token, by_session):
            assert (await http.get("/api/v1/server")).status_code == 200
        assert (await remove(rig, "ann")).status_code == 204
        for http in (by_token, by_session):
            assert (await http.get("/api/v1/server")).status_code == 401, "at once, though it was known a moment ago"
        assert (await test_sessions.begin(rig, code)).status_code == 401
        assert "ann" not in await names(rig)
        assert (await remove(rig, "ann")).status_code == 404
        await add(rig, "ann", "viewer")
        for http in (by_token, by_session):
            assert (await http.get("/api/v1/server")).status_code == 401
    assert old != rig.tokens["ann"]
    async with rig.as_user("ann") as http:
        assert (await http.get("/api/v1/server")).json()["right"] == "viewer"
        (found,) = (await http.get("/api/v1/jobs")).json()["items"]
    assert (found["id"], found["owner"]) == (job.id, "ann"), "a job that has ended keeps the name of its owner"


async def test_on_another_server_of_the_database_they_hold_no_longer_than_a_moment(rig: rigs.Rig) -> None:
    now = 0.0
    session = await test_sessions.session_of(rig, "ann")
    other = authentication.Authenticator(rig.store, rigs.SECRET, lambda: now, rig.clock)
    told = [{"authorization": f"Bearer {secret}"} for secret in (rig.tokens["ann"], session)]
    for headers in told:
        assert (await other.caller(headers)).user.name == "ann"
    assert (await remove(rig, "ann")).status_code == 204
    now = authentication.KNOWN_S
    for headers in told:
        with pytest.raises(errors.Unauthenticated):
            await other.caller(headers)


async def test_open_streams_end(rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_routes, "_BEAT_S", 0.05)
    watching = test_streams.stream(rig, "/api/v1/watch", "after=0")
    assert await watching.chunk()
    assert (await remove(rig, "ann")).status_code == 204
    while await watching.chunk() is not None:
        pass


async def test_users_with_jobs_that_have_not_ended_stay(rig: rigs.Rig) -> None:
    await rig.launch(await rig.submit("ann", name="runs"))
    rig.clock.now += 1
    halted = await rig.submit("ann", name="rests")
    await rig.happen(halted.id, events.Intended(intent=intents.Intent.HALT, by="ann"))
    await rig.submit("bob")
    refused = await remove(rig, "ann")
    told = refused.json()["error"]
    assert (refused.status_code, told["message"]) == (409, "ann has jobs that have not ended: rests, runs.")
    assert told["hint"].startswith("Wait for their end, or cancel them: oarlock cancel ")
    assert halted.id in told["hint"]
    for number in range(2):
        rig.clock.now += 1
        await rig.submit("ann", name=f"waits-{number}")
    assert (await remove(rig, "ann")).json()["error"]["message"].endswith("waits-1, waits-0, rests and 1 more.")
    async with rig.as_user("ann") as http:
        assert (await http.get("/api/v1/server")).status_code == 200, "nothing is lost by a refusal"
        for job in (await http.get("/api/v1/jobs")).json()["items"]:
            await http.put(f"/api/v1/jobs/{job['id']}/intent", json={"intent": "cancel"})
    assert (await remove(rig, "ann")).status_code == 409, "one is being stopped"


async def test_oneself_and_the_last_administrator_stay(rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "KNOWN_S", 240.0)
    last = (await remove(rig, "root")).json()["error"]
    assert "root is the last administrator" in last["message"]
    assert "--right admin" in last["hint"]
    await add(rig, "boss", "admin")
    mine = await remove(rig, "boss", who="boss")
    assert (mine.status_code, mine.json()["error"]["message"]) == (409, "You cannot remove yourself.")
    async with rig.as_user("boss") as http:
        assert (await http.get("/api/v1/server")).status_code == 200
        await rig.store.write(lambda tx: tx.remove_user("boss"))  # by another server, a moment ago
        refused = await http.delete("/api/v1/users/root")
    assert (refused.status_code, "last administrator" in refused.text) == (409, True)
    await add(rig, "boss", "admin")
    assert (await remove(rig, "root", who="boss")).status_code == 204
    assert "root" not in await names(rig)


async def test_only_administrators_remove_users(rig: rigs.Rig) -> None:
    for who in ("ann", "vera"):
        for name in ("bob", who, "nobody"):
            assert (await remove(rig, name, who=who)).status_code == 403
    assert await names(rig) == ["ann", "bob", "root", "vera"]


async def test_secrets_go_and_are_not_there_for_a_new_user_of_the_name(rig: rigs.Rig, tmp_path: Path) -> None:
    files = secretfiles.SecretFiles(tmp_path / "secrets")
    for name in ("put", "listed", "forget"):
        setattr(rig.secrets, name, getattr(files, name))
    files.put("own", "of ann", "ann", secretfiles.Sharing())
    files.put("own", "of bob", "bob", secretfiles.Sharing())
    files.put("hub", "of the server", "", secretfiles.Sharing(users=("ann", "bob")))
    files.put("all", "of the server", "", secretfiles.Sharing(everyone=True))
    await rig.submit("ann", name="waits")
    assert (await remove(rig, "ann")).status_code == 409
    assert [one.name for one in files.listed("ann")] == ["own", "all", "hub"], "nothing is lost by a refusal"
    async with rig.as_user("ann") as http:
        await http.put("/api/v1/jobs/waits/intent", json={"intent": "cancel"})
    assert (await remove(rig, "ann")).status_code == 204
    await add(rig, "ann")
    async with rig.as_user("ann") as http:
        assert [one["name"] for one in (await http.get("/api/v1/secrets")).json()["items"]] == ["all"]
    assert [one.name for one in files.listed("bob")] == ["own", "all", "hub"]
    assert files.listed("root", admin=True)[-1] == bodies.SecretInfo(name="hub", users=("bob",))


async def test_a_submission_that_is_under_way_adds_no_job_of_a_removed_user(rig: rigs.Rig) -> None:
    """Its request was admitted before; the removal has found no job that had not ended."""
    ann = users.User(name="ann", right=users.Right.USER)
    access = authorisation.Access(rig.store, ann)
    assert (await remove(rig, "ann")).status_code == 204
    with pytest.raises(errors.Unauthenticated, match="was removed meanwhile"):
        await access.add(lambda tx: pytest.fail("it is added"))
