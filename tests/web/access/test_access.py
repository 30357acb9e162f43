"""Access to the pages: sessions, rights, origins, hosts, headers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
from tests.api.security import test_privacy
from tests.web import browsers

from oarlock.api.security import authentication
from oarlock.data import storage
from oarlock.spec import errors, jobs
from oarlock.spec.access import privacy, users
from oarlock.store import stores
from oarlock.web import application, routing
from oarlock.web.access import cookies, origins, visits

PAGES = application.PAGES
OWN = ("root", "ann")
ROBUST = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'"


def named(page: routing.Page) -> str:
    return f"{page.method} {page.path}"


async def ask(rig: browsers.WebRig, page: routing.Page, job: jobs.Job, who: str, **more: str) -> int:
    """The status of a page for a user; streams are closed after their first bytes."""
    forms = {
        "/jobs": {"action": "halt", "job": job.id, "sure": "yes"},
        "/jobs/{job}/set": {"priority": "60"},
        "/pools/edit": {"pool": "new"},
        "/pools/remove": {"pool": "default"},
        "/simulate": {"workload": "small-first"},
        "/submit": {"text": "command: python a.py"},
        "/users": {"action": "add", "user": "new"},
        "/sessions": {"sha256": "0" * 64},
        "/login": {"secret": "x"},
    }
    async with rig.browser(who, **more) as browser:
        path = page.path.format(job=job.id, task="worker-0")
        if page.stream:
            async with browser.stream("GET", path, headers=browsers.OURS) as answer:
                return answer.status_code
        if page.method == "GET":
            return (await browser.get(path)).status_code
        return (await browser.post(path, data=forms.get(page.path, {}), headers=browsers.OURS)).status_code


@pytest.mark.parametrize("page", PAGES, ids=named)
async def test_every_page_for_every_kind_of_session(rig: browsers.WebRig, page: routing.Page) -> None:
    job = await rig.launch(await rig.submit("ann"))
    name = cookies.SessionCookie(browsers.SERVER, secure=False).name
    expired = "oas_" + "A" * 43
    token = authentication.digest(rig.tokens["ann"])
    old = users.Session(sha256=authentication.digest(expired), user="ann", token=token, created_at=0.0, used_at=0.0)
    await rig.store.write(lambda tx: tx.put_session(old))
    refused = 401 if page.stream or page.method != "GET" else 200 if page.open else 303
    for cookie in ("", f"{name}=x", f"{name}={rig.tokens['root']}", f"{name}=oas_{'B' * 43}", f"{name}={expired}"):
        assert await ask(rig, page, job, "", Cookie=cookie) == refused, cookie
    for who in ("vera", "bob", "ann", "root"):
        status = await ask(rig, page, job, who)
        if page.open:
            assert status == (200 if page.method == "GET" else 303), who
        elif (who == "vera" and page.right is users.Right.USER) or (who != "root" and page.right is users.Right.ADMIN):
            assert status == 403
        elif page.path == "/pools/remove":
            assert status == (404 if page.method == "GET" else 409), "none is named, and this one stays"
        elif page.path == "/simulate/{job}":
            assert status == 404, "it is not a simulation"
        elif page.path == "/jobs/{job}/set":
            assert status == (404 if who not in OWN else 409), "it does not wait, so no change was tried for it"
        elif "{job}" in page.path or named(page) == "POST /jobs":
            assert status == (404 if who not in OWN else 200 if page.method == "GET" else 303), who
        elif named(page) == "POST /sessions":
            assert status == 404
        elif named(page) == "POST /submit/code":
            assert status == 422
        else:
            assert status in (200, 204, 303), who


@pytest.fixture(params=[False, True], ids=["names are shown", "private_jobs"])
async def private(request: pytest.FixtureRequest, rig: browsers.WebRig) -> bool:
    rig.services.forecaster.names = privacy.Names(request.param, b"k" * 32)
    rig.secrets.values[f"{test_privacy.MARK}-secret"] = "hush"
    return bool(request.param)


def stored(view: stores.View) -> list[object]:
    """Return all that pages can change in the store. The clock stands still, so that no session is used later."""
    named = [one.name for one in view.users()]
    known = [(view.tokens(name), view.sessions(name)) for name in named]
    return [view.last_seq(), view.jobs(stores.JobFilter(limit=1000)), view.users(), view.pools(), view.nodes(), known]


async def crawled(rig: browsers.WebRig, who: str, *begin: str) -> dict[str, str]:
    """Return every page that links of pages lead to, after a look that no GET has changed anything."""
    found: dict[str, str] = {}
    left = ["/", *begin]
    async with rig.browser(who) as browser:
        before = await rig.store.read(stored), dict(rig.secrets.values), rig.shutdowns
        while left:
            path = left.pop()
            if path in found or not path.startswith("/") or path.startswith(("/static/", "/logout")):
                continue
            assert len(found) < 1000, "the crawl has no end"
            answer = await browser.get(path)
            found[path] = answer.text + repr(answer.headers)
            if answer.text.startswith("<!doctype html>"):
                assert "details " not in browsers.elements(answer.text), "without an id an update closes it"
                left += [urljoin(path, link) for link in browsers.links(answer.text)]
        assert (await rig.store.read(stored), dict(rig.secrets.values), rig.shutdowns) == before, (
            "a GET changes nothing"
        )
    return found


def addresses(job: jobs.Job) -> list[str]:
    """Return the address of every page that can be asked for this job, by its id and by its name."""
    found = []
    for asked in (job.id, job.name):
        paths = [page.path for page in PAGES if page.method == "GET" and not page.stream and not page.open]
        found += [path.format(job=asked, task="worker-0") for path in paths]
        found += [f"{path}?job={asked}" for path in paths if path.startswith("/compare")]
        found += [f"/jobs/{asked}?sections=all", f"/jobs/{asked}/log?q={test_privacy.MARK}", f"/submit?from={asked}"]
        found += [f"/jobs/{asked}/metrics?name={test_privacy.MARK}-metric"]
    return list(dict.fromkeys(found))


def measured(rig: browsers.WebRig) -> None:
    """Let jobs have a metric with a marker in its name."""

    async def series(job: str, names: list[str] | None = None, **asked: Any) -> list[storage.Series]:
        points = tuple(storage.Point(step, 2.0, float(step)) for step in range(3))
        return [storage.Series(task="worker-0", process=0, name=f"{test_privacy.MARK}-metric", points=points, count=3)]

    async def listed(job: str) -> list[str]:
        return [f"{test_privacy.MARK}-metric"]

    rig.metrics.series, rig.metrics.names = series, listed  # type: ignore[method-assign]


async def test_a_crawl_finds_nothing_of_another_users_job(rig: browsers.WebRig, private: bool) -> None:
    job = await test_privacy.planted(rig, Path(rig.services.about.home))
    measured(rig)
    for who in test_privacy.OTHERS:
        found = await crawled(rig, who, *addresses(job))
        assert len(found) > 5
        for path in [one for one in found if f"?q={test_privacy.MARK}" in one or f"={test_privacy.MARK}-" in one]:
            assert "There is no job" in found.pop(path), "an address that was typed with a marker"
        assert [path for path, page in found.items() if test_privacy.MARK in page] == []
        if private:
            assert [path for path, page in found.items() if job.name in page and job.name not in path] == []
    whole = "".join((await crawled(rig, "ann", *addresses(job))).values())
    words = ("command", "env", "data", "results", "detail", "hang", "stack", "log", "file", "metric", "secret")
    assert [word for word in words if f"{test_privacy.MARK}-{word}" not in whole] == [], "a marker that no page shows"


@pytest.mark.parametrize("who", ["root", "ann", "vera"])
async def test_no_get_of_any_user_changes_anything(rig: browsers.WebRig, who: str) -> None:
    """The crawl compares the store. It comes to the pages of actions, too, also to those that ask first."""
    rig.secrets.values[f"{test_privacy.MARK}-secret"] = "hush"
    job = await test_privacy.planted(rig, Path(rig.services.about.home))
    measured(rig)
    asked = [
        f"/users?user=ann&action=remove&sure=yes&note=x&sha256={'0' * 64}",
        "/pools/edit?pool=new&limit=gpus%3D1&action=apply",
        "/pools/remove?pool=default&sure=yes",
        f"/jobs?action=cancel&job={job.id}&sure=yes",
        f"/submit?from={job.id}&text=command%3A+x&action=submit",
        "/simulate?workload=small-first",
        f"/sessions?sha256={'0' * 64}",
    ]
    found = await crawled(rig, who, *addresses(job), *asked)
    assert len(found) > len(asked)


FOREIGN = [
    {},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:2"},
    {"Origin": "http://localhost:1"},
    {"Origin": "http://evil.example"},
    {"Origin": "http://["},
    {"Origin": browsers.URL, "Sec-Fetch-Site": "same-site"},
    {"Origin": browsers.URL, "Sec-Fetch-Site": "none"},
    {"Origin": "http://127.0.0.1:2", "Sec-Fetch-Site": "same-origin"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site"},
]


@pytest.mark.parametrize("page", [one for one in PAGES if one.method != "GET" or one.stream], ids=named)
async def test_nothing_is_done_for_a_page_of_another_site(rig: browsers.WebRig, page: routing.Page) -> None:
    job = await rig.submit("ann", name="of-ann")
    before = await rig.store.read(lambda view: (view.job(job.id), view.last_seq()))
    async with rig.browser("ann") as browser:
        sessions = await rig.store.read(lambda view: view.sessions("ann"))
        for headers in FOREIGN:
            data = {"action": "cancel", "sure": "yes", "job": job.id, "sha256": sessions[0].sha256}
            answer = await browser.request(page.method, page.path, data=data, headers=headers)
            assert answer.status_code == 403, headers
            assert "set-cookie" not in answer.headers
    assert await rig.store.read(lambda view: (view.job(job.id), view.last_seq())) == before
    assert await rig.store.read(lambda view: view.sessions("ann")) == sessions


async def test_one_sign_of_our_own_page_is_enough(rig: browsers.WebRig) -> None:
    async with rig.browser("ann") as browser:
        for headers in ({"Origin": browsers.URL}, {"Sec-Fetch-Site": "same-origin"}):
            answer = await browser.post("/sessions", data={"sha256": "0"}, headers=headers)
            assert answer.status_code == 404, headers


@pytest.mark.parametrize("page", [one for one in PAGES if one.method != "GET" or one.stream], ids=named)
async def test_nothing_is_done_under_another_name_of_the_server(rig: browsers.WebRig, page: routing.Page) -> None:
    """A rebound page and this server have the same origin: only the Host header tells that the name is not ours."""
    job = await rig.submit("ann", name="of-ann")
    async with rig.browser("ann") as browser:
        before = await rig.store.read(lambda view: (view.job(job.id), view.last_seq(), view.sessions("ann")))
        for host in ("evil.example", "evil.example:1", "localhost:1", "[::1]:1", "127.0.0.1.evil.example:1"):
            data = {"action": "cancel", "sure": "yes", "job": job.id, "sha256": before[2][0].sha256}
            headers = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
            answer = await browser.request(page.method, page.path.format(job=job.id), data=data, headers=headers)
            assert answer.status_code == 403, host
            assert "set-cookie" not in answer.headers
    assert await rig.store.read(lambda view: (view.job(job.id), view.last_seq(), view.sessions("ann"))) == before


async def test_a_rebound_host_gets_nothing(rig: browsers.WebRig) -> None:
    async with rig.browser("ann") as browser:
        for host in ("evil.example", "127.0.0.1.evil.example:1", "", "[::1]:1", "localhost"):
            for path in ("/", "/jobs", "/login", "/live"):
                assert (await browser.get(path, headers={"Host": host})).status_code == 403, host
        assert (await browser.get("/", headers={"Host": "127.0.0.1:99"})).status_code == 200


async def test_a_question_about_the_whole_server_is_answered(rig: browsers.WebRig) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "OPTIONS",
        "path": "*",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1")],
    }
    await rig.app(scope, send, send)
    assert sent[0]["status"] == 404


async def test_a_page_that_fails_without_a_session_is_reported_as_any_other(
    rig: browsers.WebRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    render = rig.app._templates.render

    def broken(template: str, /, **facts: Any) -> str:
        if template == "again.html":
            raise ZeroDivisionError
        return render(template, **facts)

    monkeypatch.setattr(rig.app._templates, "render", broken)
    async with rig.browser() as browser:
        answer = await browser.post("/jobs", data={"job": "x"}, headers=browsers.OURS)
        assert (answer.status_code, [event for event, _ in rig.failures]) == (500, ["page_failed"])
        assert "This page has failed." in browsers.text(answer.text)
        rig.failures.clear()


async def test_the_api_reads_no_cookie(rig: browsers.WebRig) -> None:
    async with rig.browser("root") as browser:
        for path in ("/api/v1/jobs", "/api/v1/users", "/openapi.json"):
            assert (await browser.get(path)).status_code == 401
        assert (await browser.post("/api/v1/shutdown", headers=browsers.OURS)).status_code == 401


async def test_the_headers_of_pages_and_files(rig: browsers.WebRig) -> None:
    async with rig.browser("ann") as browser:
        for path in ("/", "/jobs", "/nowhere", "/login", "/jobs.csv"):
            headers = (await browser.get(path)).headers
            assert headers.get_list("content-security-policy") == [
                ROBUST + "; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
            ]
            assert headers["cache-control"] == "no-store"
            assert headers["referrer-policy"] == "same-origin"
            assert headers["x-content-type-options"] == "nosniff"
        page = (await browser.get("/")).text
        scripts = [part.split('"')[0] for part in page.split('"/static/')[1:]]
        assert len(scripts) >= 4
        for name in scripts:
            file = await browser.get(f"/static/{name}")
            assert (file.status_code, "immutable" in file.headers["cache-control"]) == (200, True)
        assert (await browser.get("/static/../application.py")).status_code == 404


async def test_the_cookie_is_the_servers_own(rig: browsers.WebRig) -> None:
    async with rig.browser() as browser:
        answer = await browser.post("/login", data={"secret": rig.tokens["ann"]}, headers=browsers.OURS)
    written = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(written.split("; "))
    assert rig.tokens["ann"] not in written
    secure = cookies.SessionCookie(browsers.SERVER, secure=True)
    assert secure.name.startswith("__Host-")
    assert "; Secure" in secure.set("oas_" + "A" * 43)[1]
    assert cookies.SessionCookie("another", secure=False).name != written.partition("=")[0]


async def test_a_link_from_another_site_reloads_once_instead_of_asking_for_a_login(rig: browsers.WebRig) -> None:
    async with rig.browser() as browser:
        elsewhere = await browser.get("/jobs?text=a%22b", headers={"Sec-Fetch-Site": "cross-site"})
        assert (elsewhere.status_code, 'http-equiv="refresh" content="0"' in elsewhere.text) == (200, True)
        browsers.elements(elsewhere.text)
        again = await browser.get("/jobs?text=a%22b", headers={"Sec-Fetch-Site": "same-origin"})
        assert (again.status_code, again.headers["location"]) == (303, "/login?next=%2Fjobs%3Ftext%3Da%2522b")


async def test_a_code_logs_in_once_and_leads_only_to_our_own_pages(rig: browsers.WebRig) -> None:
    async with rig.as_user("ann") as http:
        code = (await http.post("/api/v1/login-codes")).json()["code"]
    async with rig.browser() as browser:
        data = {"secret": code, "next": "/jobs?phase=QUEUED"}
        answer = await browser.post("/login", data=data, headers=browsers.OURS)
        assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?phase=QUEUED")
        assert "ann" in (await browser.get("/sessions")).text
        assert (await browser.post("/logout", headers=browsers.OURS)).headers["location"] == "/login"
        assert (await browser.get("/jobs")).status_code == 303
        again = await browser.post("/login", data=data, headers=browsers.OURS)
        assert (again.status_code, "used already" in again.text) == (401, True)
    async with rig.browser() as browser:
        data = {"secret": rig.tokens["ann"], "next": "/jobs?text=a%22b&name=\u65e5"}
        answer = await browser.post("/login", data=data, headers=browsers.OURS)
        assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?text=a%22b&name=%E6%97%A5")
    for elsewhere in ("//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "/\t/evil"):
        assert origins.local_path(elsewhere) == "/", elsewhere


async def test_a_login_link_replaces_no_session(rig: browsers.WebRig) -> None:
    async with rig.as_user("bob") as http:
        code = (await http.post("/api/v1/login-codes")).json()["code"]
    async with rig.browser("ann") as browser:
        answer = await browser.post("/login", data={"secret": code, "next": "/jobs"}, headers=browsers.OURS)
        assert (answer.status_code, answer.headers["location"]) == (303, "/jobs")
        assert "set-cookie" not in answer.headers
        await browser.post("/logout", headers=browsers.OURS)
        answer = await browser.post("/login", data={"secret": code}, headers=browsers.OURS)
        assert "set-cookie" in answer.headers, "the code was not used before"
    old = cookies.SessionCookie(browsers.SERVER, secure=False).name + "=oas_" + "A" * 43
    async with rig.browser() as browser:
        data = {"secret": rig.tokens["ann"]}
        answer = await browser.post("/login", data=data, headers={**browsers.OURS, "Cookie": old})
        assert "set-cookie" in answer.headers, "an ended session does not prevent a login"


async def test_an_idle_session_ends_although_its_page_fetches_itself_again(rig: browsers.WebRig) -> None:
    async with rig.browser("ann") as browser:

        async def seen(**headers: str) -> int:
            rig.clock.now += users.IDLE_S / 2 - 1
            await rig.services.authenticator.forget()
            return (await browser.get("/jobs", headers=headers)).status_code

        assert [await seen() for _ in range(4)] == [200] * 4, "a user who reads keeps the session"
        assert [await seen(**{"Oarlock-Fragment": "1"}) for _ in range(3)] == [200, 200, 401]


async def test_the_stream_of_news_ends_with_the_server(rig: browsers.WebRig) -> None:
    async with rig.browser("ann") as browser, browser.stream("GET", "/live", headers=browsers.OURS) as answer:
        lines = answer.aiter_lines()
        assert await anext(lines) == "event: open"
        rig.services.wakes.close()
        assert len([line async for line in lines if line]) < 10, "it asks again and again"


async def revoked(rig: browsers.WebRig) -> None:
    await rig.store.write(lambda tx: tx.remove_token(authentication.digest(rig.tokens["ann"])))
    await rig.services.authenticator.forget()


async def removed(rig: browsers.WebRig) -> None:
    async with rig.as_user("root") as http:
        await http.put("/api/v1/jobs/new/intent", json={"intent": "cancel"})
        assert (await http.delete("/api/v1/users/ann")).status_code == 204


@pytest.mark.parametrize("end", [revoked, removed])
async def test_the_stream_of_news_ends_with_its_session(
    rig: browsers.WebRig, end: Callable[[browsers.WebRig], Awaitable[None]]
) -> None:
    async with rig.browser("ann") as browser, browser.stream("GET", "/live", headers=browsers.OURS) as answer:
        lines = answer.aiter_lines()
        assert await anext(lines) == "event: open"
        await rig.submit("ann", name="new")
        assert "event: changed" in [await anext(lines) for _ in range(3)]
        await end(rig)
        assert "event: ended" in [line async for line in lines]


async def test_a_page_of_a_capability_is_there_where_the_server_has_it(rig: browsers.WebRig) -> None:
    async def show(visit: visits.Visit) -> routing.Filled:
        return routing.Filled(template="error.html", facts={"error": errors.NotFound("shown"), "next": "/"})

    more = {"path": "/notebooks", "title": "Notebooks", "right": users.Right.USER, "key": "b"}
    page = routing.Page(handler=show, capability="notebooks", **more)
    told: list[tuple[str, int, bool]] = []
    for words in ((), ("notebooks",)):
        rig.tell(page, capabilities=words)
        for who in ("vera", "ann"):
            async with rig.browser(who) as browser:
                home = (await browser.get("/")).text
                status = (await browser.get("/notebooks")).status_code
                told.append((who, status, 'href="/notebooks" data-key="b"' in home))
    assert told == [("vera", 404, False), ("ann", 404, False), ("vera", 403, False), ("ann", 200, True)]
