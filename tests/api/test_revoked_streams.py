"""Streams of a token that is revoked, a user who is removed, or a session that ends: they end although they are idle.

Each is opened by its user and says nothing more by itself. A stream that went on would be waited for in vain.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

import httpx
import pytest
import pytest_asyncio
from tests.api import rig as rigs
from tests.api import test_streams
from tests.api.administration import test_users
from tests.api.agents import test_agents
from tests.api.data import test_files
from tests.api.security import test_sessions

from oarlock.api import application
from oarlock.api.jobs import events as event_routes
from oarlock.api.security import authentication
from oarlock.spec import errors, jobs
from oarlock.spec.access import users

DIGEST = "sha256:" + 64 * "0"
BIG = bytes(4 << 20)
WAIT_S = 120.0
STREAMS = frozenset({"text/event-stream", "application/x-ndjson", "application/octet-stream"})


@pytest_asyncio.fixture(autouse=True)
async def guest(rig: rigs.Rig) -> None:
    """An administrator who has no jobs, and so can be removed."""
    await test_users.add(rig, "guest", "admin")


@pytest.fixture(autouse=True)
def no_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a beat of its own a stream might notice the end by another way."""
    monkeypatch.setattr(event_routes, "_BEAT_S", 1e6)


class Opened(Protocol):
    """An open stream."""

    async def end(self) -> str:
        """Wait for its end. Return how it was told: the code of an error, or nothing."""
        ...


class Answer:
    """An answer that is read to its end, which is whole unless `cut`."""

    def __init__(self, stream: test_streams.Stream, *, cut: bool = False) -> None:
        self.stream = stream
        self._cut = cut

    async def end(self) -> str:
        if self._cut:  # nothing more is taken of it
            async with asyncio.timeout(WAIT_S):
                await self.stream.task
            return ""
        async with asyncio.timeout(WAIT_S):
            rest = b""
            while (chunk := await self.stream.chunk()) is not None:
                rest += chunk
            await self.stream.task
        return json.loads(rest)["error"]["code"] if rest else ""


class Refused:
    """A request without an answer yet."""

    def __init__(self, asking: Awaitable[httpx.Response]) -> None:
        self.asking = asyncio.ensure_future(asking)

    async def end(self) -> str:
        async with asyncio.timeout(WAIT_S):
            answer = await self.asking
        assert answer.status_code == 401
        return answer.json()["error"]["code"]


class Conversation:
    """A web socket."""

    def __init__(self, talk: test_streams.Talk, process: Callable[[], rigs.Echo]) -> None:
        self.talk = talk
        self._process = process

    async def end(self) -> str:
        async with asyncio.timeout(WAIT_S):
            said = json.loads((await self.talk.hear())["text"])
            assert (await self.talk.hear())["type"] == "websocket.close"
            await self.talk.task
        assert self._process().killed
        return said["error"]["code"]


async def watch(rig: rigs.Rig, job: jobs.Job) -> Opened:
    watching = test_streams.stream(
        rig, "/api/v1/watch", f"after={await rig.store.read(lambda view: view.last_seq())}", who="guest"
    )
    assert await watching.chunk() == b": oarlock\n\n"
    return Answer(watching)


async def follow(rig: rigs.Rig, job: jobs.Job) -> Opened:
    await test_streams.append(rig, job, 0, b"first\n")
    following = test_streams.stream(rig, f"/api/v1/jobs/{job.id}/logs", "follow=true", who="guest")
    assert await following.chunk()
    return Answer(following)


async def download(rig: rigs.Rig, job: jobs.Job) -> Opened:
    test_files.put(test_files.home(rig) / "results" / job.id / "big", BIG)
    loading = test_streams.stream(rig, f"/api/v1/jobs/{job.id}/file", "path=results/big", who="guest")
    assert await loading.chunk()
    return Answer(loading, cut=True)


async def poll(rig: rigs.Rig, job: jobs.Job) -> Opened:
    last = await rig.store.read(lambda view: view.last_seq())
    waiting = Refused(requested(rig, lambda http: http.get("/api/v1/events", params={"after": last, "wait": 60})))
    while not rig.wakes._waiting:  # noqa: ASYNC110 - its wait has no event of its own
        await asyncio.sleep(0.01)
    return waiting


async def upload(rig: rigs.Rig, job: jobs.Job) -> Opened:
    begun = asyncio.Event()

    async def content() -> AsyncIterator[bytes]:
        yield b"begun"
        begun.set()
        await asyncio.sleep(2 * WAIT_S)
        yield b"never sent"

    sending = Refused(requested(rig, lambda http: http.put(f"/api/v1/blobs/{DIGEST}", content=content())))
    await begun.wait()
    return sending


async def command(rig: rigs.Rig, job: jobs.Job) -> Opened:
    talk = test_streams.Talk(rig, job, who="guest")
    await talk.hear()
    talk.say('["cat"]')
    assert (await talk.hear())["bytes"] == b"\x02cat"
    return Conversation(talk, lambda: rig.executed[0])


async def connection(rig: rigs.Rig, job: jobs.Job) -> Opened:
    rig.tensorboards.put(job.id)
    talk = test_streams.Talk(rig, job, who="guest", path="/tensorboard/connection")
    await talk.hear()
    assert (await talk.hear())["bytes"] == b"\x02connected"
    return Conversation(talk, lambda: rig.tensorboards.connections[0])


async def requested(rig: rigs.Rig, ask: Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]) -> httpx.Response:
    async with rig.as_user("guest") as http:
        return await ask(http)


KINDS = {
    watch: "",
    follow: "unauthenticated",
    download: "",
    poll: "unauthenticated",
    upload: "unauthenticated",
    command: "unauthenticated",
    connection: "unauthenticated",
}
"""Each kind of stream, and how its end is told."""


async def revoked_elsewhere(rig: rigs.Rig) -> None:
    sha256 = authentication.digest(rig.tokens["guest"])
    await rig.store.write(lambda tx: tx.remove_token(sha256))


async def removed_elsewhere(rig: rigs.Rig) -> None:
    await rig.store.write(lambda tx: tx.remove_user("guest"))


async def removed_here(rig: rigs.Rig) -> None:
    assert (await test_users.remove(rig, "guest")).status_code == 204


async def revoked_here(rig: rigs.Rig) -> None:
    async with rig.as_user("root") as http:
        path = f"/api/v1/users/guest/tokens/{authentication.digest(rig.tokens['guest'])}"
        assert (await http.delete(path)).status_code == 204


ENDS = [revoked_elsewhere, removed_elsewhere, revoked_here, removed_here]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
async def test_each_kind_of_stream_ends(
    rig: rigs.Rig, kind: Callable[[rigs.Rig, jobs.Job], Awaitable[Opened]], end: Callable[[rigs.Rig], Awaitable[None]]
) -> None:
    before = len(asyncio.all_tasks())
    job = await test_agents.gang(rig, 1, tensorboard=True)
    opened = await kind(rig, job)
    await end(rig)
    assert await opened.end() == KINDS[kind]
    await asyncio.sleep(0.05)
    assert len(asyncio.all_tasks()) <= before, "something of it goes on"
    assert rig.reports == []


async def ended(rig: rigs.Rig, http: httpx.AsyncClient) -> None:
    assert (await http.delete("/api/v1/sessions/current")).status_code == 204


async def expired(rig: rigs.Rig, http: httpx.AsyncClient) -> None:
    rig.clock.now += users.IDLE_S


@pytest.mark.parametrize("end", [ended, expired], ids=lambda end: end.__name__)
async def test_streams_of_a_session_end_with_it(
    rig: rigs.Rig, end: Callable[[rigs.Rig, httpx.AsyncClient], Awaitable[None]]
) -> None:
    job = await test_agents.gang(rig, 1)
    rig.tokens["guest"] = await test_sessions.session_of(rig, "guest")
    opened = await command(rig, job)
    async with rig.as_user("guest") as http:
        await end(rig, http)
    assert await opened.end() == "unauthenticated"


async def test_nothing_is_told_after_the_answer_to_the_revocation(rig: rigs.Rig) -> None:
    """On the server that revokes. Lines come all the time."""
    job = await test_agents.gang(rig, 1)
    following = test_streams.stream(rig, f"/api/v1/jobs/{job.id}/logs", "follow=true", who="guest")
    await test_streams.append(rig, job, 0, b"first\n")
    got = following.lines()
    assert (await anext(got))["text"] == "first"
    await revoked_here(rig)
    await test_streams.append(rig, job, 6, b"second\n")
    assert [line["error"]["code"] async for line in got] == ["unauthenticated"]


async def test_streams_of_others_go_on(rig: rigs.Rig) -> None:
    job = await test_agents.gang(rig, 1)
    mine = await command(rig, job)
    theirs = test_streams.Talk(rig, job, who="root")
    await theirs.hear()
    theirs.say('["cat"]')
    await theirs.hear()
    await revoked_here(rig)
    assert await mine.end() == "unauthenticated"
    theirs.say(data=b"\x00still here")
    assert (await theirs.hear())["bytes"] == b"\x01still here"
    theirs.leave()
    await theirs.task


async def test_while_the_database_is_lost_streams_stay(rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    present = authentication.Authenticator.present

    async def lost_twice(self: authentication.Authenticator, digests: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise errors.Unavailable("The database is lost.", hint="")
        if asked == 2:
            raise RuntimeError("a defect")
        return await present(self, digests)

    job = await test_agents.gang(rig, 1)
    opened = await command(rig, job)
    monkeypatch.setattr(authentication.Authenticator, "present", lost_twice)
    await revoked_elsewhere(rig)
    assert await opened.end() == "unauthenticated"
    assert asked == 3
    assert [name for name, _ in rig.reports] == ["streams_not_checked"]


async def test_a_client_that_does_not_read_is_left(rig: rigs.Rig) -> None:
    """Its last words cannot be sent."""
    job = await test_agents.gang(rig, 1)
    await test_streams.append(rig, job, 0, b"".join(b"%0999d\n" % number for number in range(2000)))
    following = test_streams.stream(rig, f"/api/v1/jobs/{job.id}/logs", "follow=true", who="guest")
    assert await following.chunk()
    await revoked_elsewhere(rig)
    async with asyncio.timeout(WAIT_S):
        await following.task


def test_every_route_that_lasts_is_looked_at() -> None:
    of_users = [route for route in application.TABLE if isinstance(route.needs, users.Right)]
    lasting = [route for route in of_users if route.method == "WS" or route.media in STREAMS]
    assert [route.path for route in lasting if not route.long] == []
    assert [route.path for route in of_users if route.long and route.tensorboard] == [], "its token is not in the store"
