"""Answers that last: followed logs, the event log as long poll and as stream, a command inside a task."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette import types
from tests.api import rig as rigs
from tests.api.agents import test_agents

from oarlock.api.jobs import events as event_routes
from oarlock.api.security import authentication
from oarlock.spec import attempts, errors, events, jobs


class Stream:
    """An ASGI request with an answer that is read while it is made: httpx's transport waits for the end."""

    def __init__(self, app: types.ASGIApp, path: str, query: str, token: str, headers: dict[str, str]) -> None:
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=1)
        self._gone = asyncio.Event()
        self.status = 0
        told = {"host": "127.0.0.1", "authorization": f"Bearer {token}", **headers}
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in told.items()],
            "client": ("127.0.0.1", 1),
        }
        self._asked = False
        self.task = asyncio.create_task(app(scope, self._receive, self._send))  # type: ignore[arg-type]

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message.get("body"):
            await self._chunks.put(message["body"])
        if message["type"] == "http.response.body" and not message.get("more_body"):
            await self._chunks.put(None)

    async def chunk(self) -> bytes | None:
        async with asyncio.timeout(240):
            return await self._chunks.get()

    async def lines(self) -> AsyncIterator[dict[str, Any]]:
        while (chunk := await self.chunk()) is not None:
            for line in chunk.splitlines():
                yield json.loads(line)

    async def leave(self) -> None:
        self._gone.set()
        async with asyncio.timeout(240):
            while not self.task.done():
                while not self._chunks.empty():
                    self._chunks.get_nowait()
                await asyncio.sleep(0.01)


def stream(rig: rigs.Rig, path: str, query: str = "", who: str = "ann", **headers: str) -> Stream:
    return Stream(rig.app, path, query, rig.tokens[who], headers)


async def append(rig: rigs.Rig, job: jobs.Job, offset: int, data: bytes, name: str = "stdout.0") -> None:
    await rig.logs.append(rigs.key_of(job), name, offset, data, at=rig.clock())


async def test_followed_logs_end_with_the_job_and_lack_nothing(rig: rigs.Rig) -> None:
    job = await test_agents.gang(rig, 1, max_restarts=0)
    await append(rig, job, 0, b"first\n")
    following = stream(rig, f"/api/v1/jobs/{job.id}/logs", "follow=true")
    got = following.lines()
    assert (await anext(got))["text"] == "first"
    await append(rig, job, 6, b"second\nthird\nhalf a li")
    assert [(await anext(got))["text"] for _ in range(2)] == ["second", "third"]
    await append(rig, job, 28, b"ne\nlast")
    await rig.end(job.id, code=3)
    rest = [line async for line in got]
    text = "".join(line["text"] for line in rest[:-1])
    assert text == "half a linelast"
    assert rest[-1] == {"end": {"phase": "FAILED", "exit_code": 3}}


async def test_logs_of_an_ended_job_are_followed_to_their_end_at_once(rig: rigs.Rig) -> None:
    job = await test_agents.gang(rig, 1)
    await append(rig, job, 0, b"".join(b"line %d\n" % number for number in range(5000)))
    await rig.end(job.id)
    following = stream(rig, f"/api/v1/jobs/{job.id}/logs", "follow=true")
    lines = [line async for line in following.lines()]
    assert [line["text"] for line in lines[:-1]] == [f"line {number}" for number in range(5000)]
    assert lines[-1] == {"end": {"phase": "COMPLETED", "exit_code": 0}}


async def test_followed_logs_end_with_the_token_of_their_reader(rig: rigs.Rig) -> None:
    job = await test_agents.gang(rig, 1)
    following = stream(rig, f"/api/v1/jobs/{job.id}/logs", "follow=true", who="root")
    await append(rig, job, 0, b"first\n")
    got = following.lines()
    assert (await anext(got))["text"] == "first"
    await rig.store.write(lambda tx: tx.remove_token(authentication.digest(rig.tokens["root"])))
    await rig.services.authenticator.forget()
    await append(rig, job, 6, b"second\n")
    rest = [line async for line in got]
    assert [one["error"]["code"] for one in rest] == ["unauthenticated"]


async def test_a_reader_that_leaves_a_log_is_noticed(rig: rigs.Rig) -> None:
    job = await test_agents.gang(rig, 1)
    before = len(asyncio.all_tasks())
    following = stream(rig, f"/api/v1/jobs/{job.id}/logs", "follow=true")
    await append(rig, job, 0, b"one\n")
    assert await following.chunk()
    await following.leave()
    await asyncio.sleep(0.05)
    assert len(asyncio.all_tasks()) <= before


async def test_a_slow_reader_holds_the_reading_up(rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    job = await test_agents.gang(rig, 1)
    await append(rig, job, 0, b"x" * 99 + b"\n")
    taken = 0
    read = rig.logs.follow

    async def counted(query: Any, **more: Any) -> Any:
        nonlocal taken
        line = await anext(aiter(read(query, **more)))
        for _ in range(1_000_000):
            taken += 1
            yield line

    monkeypatch.setattr(rig.logs, "follow", counted)
    following = stream(rig, f"/api/v1/jobs/{job.id}/logs", "follow=true")
    await following.chunk()
    await asyncio.sleep(0.3)
    assert taken < 10_000, "an answer that is not taken is not read"
    await following.leave()


async def test_a_log_that_breaks_says_so_in_its_last_line(rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    job = await test_agents.gang(rig, 1)

    async def broken(query: Any, **_: Any) -> Any:
        raise errors.Unavailable("The disk is gone.", hint="Bring it back.")
        yield

    monkeypatch.setattr(rig.logs, "follow", broken)
    lines = [line async for line in stream(rig, f"/api/v1/jobs/{job.id}/logs", "follow=true").lines()]
    assert lines[-1]["error"]["code"] == "unavailable"


async def test_log_queries_choose(rig: rigs.Rig) -> None:
    job = await test_agents.gang(rig, 2)
    await append(rig, job, 0, b"a\nb\nc\n")
    async with rig.as_user("ann") as http:
        path = f"/api/v1/jobs/{job.id}/logs"
        assert len((await http.get(path, params={"tail": 2})).text.splitlines()) == 2
        assert (await http.get(path, params={"role": "worker", "index": 1})).text == ""
        assert (await http.get(path, params={"role": "boss"})).status_code == 422
        assert (await http.get(path, params={"since": "nan"})).status_code == 422


async def test_an_event_poll_waits_for_something_new(rig: rigs.Rig) -> None:
    async with rig.as_user("ann") as http:
        waiting = asyncio.create_task(http.get("/api/v1/events", params={"wait": 60}))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await rig.submit("bob")  # not for ann: she waits on
        await asyncio.sleep(0.05)
        assert not waiting.done()
        job = await rig.submit("ann")
        async with asyncio.timeout(240):
            page = (await waiting).json()
        assert [(item["job"], item["kind"]) for item in page["items"]] == [(job.id, "submitted")]
        rest = (await http.get("/api/v1/events", params={"after": page["next"]})).json()
        assert rest == {"items": [], "next": page["next"]}


async def test_the_watch_sends_events_and_goes_on_after_the_last_id(
    rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_routes, "_BEAT_S", 0.05)
    job = await rig.submit("ann")
    watching = stream(rig, "/api/v1/watch", "after=0")
    text = b""
    while b"submitted" not in text:
        text += await watching.chunk() or b""
    await watching.leave()
    record = await rig.store.read(lambda view: view.records(0)[0])
    assert f"id: {record.seq}\nevent: submitted\ndata: {{" in text.decode()
    again = stream(rig, "/api/v1/watch", "after=0", **{"last-event-id": str(record.seq)})
    await rig.happen(job.id, *[])
    text = b""
    while text.count(b": beat") < 2:
        text += await again.chunk() or b""
    await again.leave()
    assert b"submitted" not in text


async def test_a_compacted_log_is_gone(rig: rigs.Rig) -> None:
    for _ in range(3):
        await rig.submit("ann")
    last = await rig.store.read(lambda view: view.last_seq())
    await rig.store.write(lambda tx: tx.compact(last))
    async with rig.as_user("ann") as http:
        for path in ("/api/v1/events", "/api/v1/watch"):
            answer = await http.get(path, params={"after": 0 if "events" in path else 1})
            assert (answer.status_code, answer.json()["error"]["code"]) == (410, "gone")


class Talk:
    """A web-socket conversation in ASGI's words."""

    def __init__(self, rig: rigs.Rig, job: jobs.Job, query: str = "", who: str = "ann", path: str = "/exec") -> None:
        self._in: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._out: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        scope: dict[str, Any] = {
            "type": "websocket",
            "asgi": {"version": "3.0"},
            "path": f"/api/v1/jobs/{job.id}{path}",
            "query_string": query.encode(),
            "headers": [(b"host", b"127.0.0.1"), (b"authorization", f"Bearer {rig.tokens[who]}".encode())],
            "client": ("127.0.0.1", 1),
            "extensions": {"websocket.http.response": {}},
        }
        self._in.put_nowait({"type": "websocket.connect"})
        self.task = asyncio.create_task(rig.app(scope, self._in.get, self._out.put))  # type: ignore[arg-type]

    def say(self, text: str | None = None, data: bytes | None = None) -> None:
        self._in.put_nowait({"type": "websocket.receive", "text": text, "bytes": data})

    def leave(self) -> None:
        self._in.put_nowait({"type": "websocket.disconnect", "code": 1001})

    async def hear(self) -> dict[str, Any]:
        async with asyncio.timeout(240):
            return await self._out.get()


async def test_a_command_hears_and_is_heard_and_its_exit_is_told(rig: rigs.Rig) -> None:
    job = await test_agents.gang(rig, 1)
    talk = Talk(rig, job, "tty=true&rows=10&columns=20")
    assert (await talk.hear())["type"] == "websocket.accept"
    talk.say('["cat", "-"]')
    assert (await talk.hear())["bytes"] == b"\x02cat -"
    talk.say(data=b"\x00hello")
    assert (await talk.hear())["bytes"] == b"\x01hello"
    talk.say('{"resize": [30, 100]}')
    talk.say('{"eof": true}')
    assert json.loads((await talk.hear())["text"]) == {"exit": 7}
    assert (await talk.hear())["type"] == "websocket.close"
    await talk.task
    assert rig.executed[0].sizes == [(30, 100)]
    assert not rig.executed[0].killed


async def test_a_client_that_leaves_ends_the_command(rig: rigs.Rig) -> None:
    job = await test_agents.gang(rig, 1)
    talk = Talk(rig, job)
    await talk.hear()
    talk.say('["sleep"]')
    await talk.hear()
    talk.leave()
    async with asyncio.timeout(240):
        await talk.task
    assert rig.executed[0].killed


@pytest.mark.parametrize("first", ["", "{", "{}", "[]", '[""]', "[1]", '["a\\u0000"]', '["nowhere"]', '"ls"'])
async def test_a_command_that_cannot_be_is_refused_with_a_reason(rig: rigs.Rig, first: str) -> None:
    job = await test_agents.gang(rig, 1)
    talk = Talk(rig, job)
    await talk.hear()
    talk.say(first)
    assert json.loads((await talk.hear())["text"])["error"]["message"]
    assert (await talk.hear())["type"] == "websocket.close"
    await talk.task
    assert rig.executed == []


@pytest.mark.parametrize(("who", "status"), [("bob", 404), ("vera", 403), ("root", 0)])
async def test_only_its_owner_looks_inside(rig: rigs.Rig, who: str, status: int) -> None:
    job = await test_agents.gang(rig, 1)
    talk = Talk(rig, job, who=who)
    first = await talk.hear()
    if status:
        assert (first["type"], first["status"]) == ("websocket.http.response.start", status)
        await talk.task
    else:
        assert first["type"] == "websocket.accept"
        talk.leave()
        await talk.task


async def test_a_frozen_job_is_looked_into_where_it_failed(rig: rigs.Rig) -> None:
    """Its other tasks were stopped, and are gone."""
    job = await test_agents.gang(rig, 2, freeze="10m", max_restarts=0)
    places = [{"key": attempts.TaskKey(job.id, 1, "worker", index, 1)} for index in range(2)]
    for where in places:
        await rig.happen(job.id, events.TaskRegistered(**where, address="127.0.0.1"))
    failed = attempts.Exit(code=3, cause=attempts.Cause.ERROR, at=rig.clock())
    stopped = attempts.Exit(code=143, cause=attempts.Cause.STOPPED, at=rig.clock(), reason="stopped")
    await rig.happen(job.id, events.TaskExited(**places[1], exit=failed))
    too_early = Talk(rig, job, "index=1")
    assert (await too_early.hear())["status"] == 409
    await too_early.task
    decided = events.StopDecided(attempt=1, cause=attempts.Cause.ERROR, message="worker-1 failed", task="worker-1")
    await rig.happen(job.id, decided, events.TaskExited(**places[0], exit=stopped))

    talk = Talk(rig, job)
    assert (await talk.hear())["type"] == "websocket.accept"
    talk.say('["sh"]')
    assert (await talk.hear())["bytes"] == b"\x02sh"
    assert (rig.executed[0].key.role, rig.executed[0].key.index) == ("worker", 1)
    talk.leave()
    await talk.task

    other = Talk(rig, job, "index=0")
    assert (await other.hear())["status"] == 409
    body = await other.hear()
    assert b"worker-1 failed, and is kept: oarlock exec" in body["body"]
    await other.task


async def test_nothing_is_executed_where_nothing_runs(rig: rigs.Rig) -> None:
    talk = Talk(rig, await rig.submit("ann"))
    first = await talk.hear()
    assert (first["type"], first["status"]) == ("websocket.http.response.start", 409)
    await talk.task
