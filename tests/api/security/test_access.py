"""Rights: every route of the table, with every kind of token, against another user's job."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest
from tests.api import rig as rigs

from oarlock.api import application, routes
from oarlock.api.security import authentication
from oarlock.spec import attempts, errors, jobs
from oarlock.spec.access import users
from oarlock.spec.protocol import tasktokens

TABLE = [route for route in application.TABLE if route.method != "WS"]
DIGEST = "sha256:" + hashlib.sha256(b"x").hexdigest()
RANK = {"viewer": 0, "user": 1, "admin": 2}


def path_of(route: routes.Route, job: jobs.Job) -> str:
    values = {"job": job.id, "digest": DIGEST, "name": "ann", "sha256": "0" * 64, "stream": "stdout.0", "process": "0"}
    values |= {"pool": "research", "session": "0" * 64}
    return route.path.format(**values)


def body_of(route: routes.Route) -> dict[str, object]:
    bodies: dict[str, object] = {
        "submit": rigs.submission(),
        "plan": rigs.submission(),
        "manifests": rigs.submission(),
        "edit": {"priority": 60},
        "want": {"intent": "halt"},
        "add": {"name": "new"},
        "start": {"workload": "small-first"},
        "change": {},
        "preview": {},
        "add_token": {},
        "confide": {"value": "v"},
        "begin": {"secret": "oac_" + "A" * 43},
        "register": {"address": "127.0.0.1"},
        "report": {},
        "stacks": {"request": 1, "stacks": {}},
        "kept": {"names": []},
        "url": {"key": "k", "use": "read"},
        "end": {"key": "k", "upload": "u", "etags": []},
        "remove": {"keys": []},
        "checkpoint": {"step": 1, "path": "/c", "manifest": {"step": 1, "attempt": 1}},
    }
    if route.body is None:
        return {}
    if route.path.endswith("/objects/uploads"):
        return {"json": {"key": "k"}}
    return {"content": b"x"} if route.body is bytes else {"json": bodies[route.handler.__name__]}


def query_of(route: routes.Route) -> dict[str, str]:
    needed = {"offset": "0", "text": "a"} if route.path.endswith("/search") else {"offset": "0"}
    return {name: value for name, value in needed.items() if name in routes.parameters(route.query)}


def named(route: routes.Route) -> str:
    return f"{route.method} {route.path}"


async def ask(rig: rigs.Rig, route: routes.Route, job: jobs.Job, headers: dict[str, str]) -> int:
    if route.media == "text/event-stream":
        return 200 if "Authorization" in headers else 401  # has its own test: it does not end
    async with rig.client(headers) as http:
        answer = await http.request(route.method, path_of(route, job), params=query_of(route), **body_of(route))
    return answer.status_code


def by_right(least: users.Right) -> Iterator[tuple[str, bool]]:
    for name, right in (("root", "admin"), ("bob", "user"), ("vera", "viewer")):
        yield name, RANK[right] >= RANK[least.value]


@pytest.mark.parametrize("route", TABLE, ids=named)
async def test_without_a_right_token_nothing_is_told(rig: rigs.Rig, route: routes.Route) -> None:
    job = await rig.launch(await rig.submit("ann", name="secret-name"))
    key = rigs.key_of(job)
    other = attempts.TaskKey(key.job, 2, key.role, key.index, 1)
    wrong: list[dict[str, str]] = [
        {},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer oar_" + "A" * 43},
        {"Authorization": "Bearer " + "A" * 100_000},
        {"Authorization": f"Basic {rig.tokens['root']}"},
        {"Authorization": f"Bearer {rig.tokens['root'][:-1]}"},
        {"Authorization": f"Bearer {hashlib.sha256(rig.tokens['root'].encode()).hexdigest()}"},
        {"Authorization": f"Bearer {tasktokens.derive(b'x' * 32, key)}", "Oarlock-Task": str(key)},
        {"Authorization": f"Bearer {tasktokens.derive(rigs.SECRET, other)}", "Oarlock-Task": str(key)},
    ]
    open_to_all = {"/healthz", "/readyz", "/metrics"}
    if route.handler.__name__ == "begin":  # its body has the secret
        wrong = [{}]
    if route.path in open_to_all:
        assert await ask(rig, route, job, {}) == 200
        return
    if route.media == "text/event-stream":
        wrong = [{}]
    for headers in wrong:
        assert await ask(rig, route, job, headers) == 401, headers


@pytest.mark.parametrize("route", [one for one in TABLE if isinstance(one.needs, users.Right)], ids=named)
async def test_a_user_reaches_their_own_jobs_and_no_others(rig: rigs.Rig, route: routes.Route) -> None:
    assert isinstance(route.needs, users.Right)
    job = await rig.launch(await rig.submit("ann", name="secret-name"))
    for name, enough in by_right(route.needs):
        status = await ask(rig, route, job, {"Authorization": f"Bearer {rig.tokens[name]}"})
        if not enough:
            assert status == 403, name
        elif "job" in route.parameters and name != "root":
            assert status == 404, f"{name} sees another's job"
        else:
            assert status not in (401, 403), name


@pytest.mark.parametrize("name", ["bob", "vera"])
async def test_lists_and_events_show_ones_own_alone(rig: rigs.Rig, name: str) -> None:
    job = await rig.launch(await rig.submit("ann", name="secret-name"))
    async with rig.as_user(name) as http:
        for path in ("/api/v1/jobs", "/api/v1/events", "/api/v1/usage", "/api/v1/jobs?name=secret-name"):
            assert (await http.get(path)).json()["items"] == [], path
        found = (await http.get("/api/v1/summaries", params={"text": "secret"})).json()
        assert (found["items"], found["phases"]) == ([], {})
        assert (await http.get("/api/v1/summaries", params={"owner": "ann"})).status_code == 403
        assert (await http.get("/api/v1/jobs/secret-name")).status_code == 404
        assert (await http.get("/api/v1/jobs", params={"owner": "ann"})).status_code == 403
        passed = (await http.get("/api/v1/events")).json()["next"]
    async with rig.as_user("root") as http:
        everything = (await http.get("/api/v1/events")).json()
        assert {item["job"] for item in everything["items"]} == {job.id}
        assert passed == everything["next"], "jobs that one may not see are passed over"
        assert (await http.get("/api/v1/jobs", params={"owner": "ann"})).json()["items"]


async def test_a_job_named_like_anothers_id_is_found_by_its_owner(rig: rigs.Rig) -> None:
    theirs = await rig.submit("ann")
    mine = await rig.submit("bob", name=theirs.id)
    async with rig.as_user("bob") as http:
        assert (await http.get(f"/api/v1/jobs/{theirs.id}")).json()["id"] == mine.id


async def test_a_token_that_another_server_removed_holds_no_longer_than_a_moment(rig: rigs.Rig) -> None:
    now = 0.0
    asked = authentication.Authenticator(rig.store, b"s" * 32, lambda: now, rig.clock)
    headers = {"authorization": f"Bearer {rig.tokens['ann']}"}
    assert (await asked.caller(headers)).user.name == "ann"
    await rig.store.write(lambda tx: tx.remove_token(authentication.digest(rig.tokens["ann"])))
    now = authentication.KNOWN_S
    with pytest.raises(errors.Unauthenticated):
        await asked.caller(headers)


async def test_a_viewer_sees_and_does_nothing(rig: rigs.Rig) -> None:
    await rig.store.write(lambda tx: tx.put_user(users.User(name="eve", right=users.Right.USER)))
    async with rig.as_user("vera") as http:
        assert (await http.post("/api/v1/jobs", json=rigs.submission())).status_code == 403
        assert (await http.post("/api/v1/plan", json=rigs.submission())).status_code == 200


async def test_tokens_are_made_shown_once_and_removed(rig: rigs.Rig) -> None:
    async with rig.as_user("root") as http:
        assert (await http.post("/api/v1/users", json={"name": "zoe"})).status_code == 201
        assert (await http.post("/api/v1/users", json={"name": "zoe"})).status_code == 409
        for bad in ("", "a b", "../x", "a" * 64, "a\0", "-a"):
            assert (await http.post("/api/v1/users", json={"name": bad})).status_code == 422, bad
        made = (await http.post("/api/v1/users/zoe/tokens", json={"note": "laptop"})).json()
        assert (await http.post("/api/v1/users/nobody/tokens", json={})).status_code == 404
        headers = {"Authorization": f"Bearer {made['token']}"}
        async with rig.client(headers) as zoe:
            assert (await zoe.get("/api/v1/server")).json()["user"] == "zoe"
            stored = await rig.store.read(lambda view: (view.token(made["sha256"]), view.users()))
            assert made["token"] not in repr(stored)
            assert (await http.delete(f"/api/v1/users/ann/tokens/{made['sha256']}")).status_code == 404
            assert (await http.delete(f"/api/v1/users/zoe/tokens/{made['sha256']}")).status_code == 204
            assert (await zoe.get("/api/v1/server")).status_code == 401, "at once, though it was known a moment ago"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:1", "127.0.0.1.evil.example", "", "[::2]", "[", "a\tb"])
async def test_a_web_page_cannot_reach_a_local_server_by_a_name_of_its_own(rig: rigs.Rig, host: str) -> None:
    async with rig.as_user("root") as http:
        assert (await http.get("/healthz", headers={"Host": host})).status_code == 403
        assert (await http.get("/api/v1/jobs", headers={"Host": host})).status_code == 403


@pytest.mark.parametrize("route", [one for one in TABLE if one.method != "GET"], ids=named)
async def test_no_page_of_another_site_changes_anything(rig: rigs.Rig, route: routes.Route) -> None:
    job = await rig.submit("ann")
    before = await rig.store.read(lambda view: (view.job(job.id), view.last_seq(), view.users()))
    local = "http://127.0.0.1:1"
    async with rig.as_user("root") as http:
        for told in (
            {"Host": "evil.example", "Origin": "http://evil.example"},
            {"Host": "localhost.evil.example:1"},
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Origin": local.replace("1:1", "1:2")},
            {"Origin": local, "Host": "evil.example"},
        ):
            answer = await http.request(route.method, path_of(route, job), headers=told, **body_of(route))
            assert answer.status_code == 403, told
    assert await rig.store.read(lambda view: (view.job(job.id), view.last_seq(), view.users())) == before


async def test_other_origins_are_refused_and_none_is_allowed(rig: rigs.Rig) -> None:
    async with rig.as_user("root") as http:
        for origin in ("https://evil.example", "null", "http://["):
            answer = await http.get("/api/v1/jobs", headers={"Origin": origin})
            assert answer.status_code == 403, origin
        answer = await http.get("/api/v1/jobs", headers={"Origin": "http://127.0.0.1:1"})
        assert answer.status_code == 200
        preflight = await http.options("/api/v1/jobs", headers={"Access-Control-Request-Method": "POST"})
        assert preflight.status_code == 405
    assert not [name for name in (*answer.headers, *preflight.headers) if name.startswith("access-control")]


async def test_every_answer_carries_the_security_headers(rig: rigs.Rig) -> None:
    async with rig.as_user("root") as http:
        for path in ("/healthz", "/nowhere", "/api/v1/jobs", "/api/v1/jobs/none"):
            headers = (await http.get(path)).headers
            assert headers["x-content-type-options"] == "nosniff", path
            assert "default-src 'none'" in headers["content-security-policy"], path
            assert headers["cache-control"] == "no-store", path
