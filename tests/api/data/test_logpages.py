"""Pages of a log and the search in it, over HTTP: within bounds, and one search of a user at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.api import rig as rigs

from oarlock.api import routes
from oarlock.api.services import turns
from oarlock.spec import errors, jobs, tasklogs


async def logged(rig: rigs.Rig, count: int = 30) -> jobs.Job:
    job = await rig.launch(await rig.submit("ann", name="train"))
    text = b"".join(b"line %d\n" % number for number in range(count))
    await rig.logs.append(rigs.key_of(job), "stdout.0", 0, text, at=5.0)
    return job


async def test_pages_follow_each_other_over_http(rig: rigs.Rig) -> None:
    job = await logged(rig)
    async with rig.as_user("ann") as http:
        end = (await http.get(f"/api/v1/jobs/{job.id}/logs/page", params={"before": 3})).json()
        assert [line["text"] for line in end["lines"]] == ["line 27", "line 28", "line 29"]
        query = {"at": end["before"], "before": 2, "attempt": 1, "role": "worker", "index": 0, "stream": "stdout"}
        before = (await http.get("/api/v1/jobs/train/logs/page", params=query)).json()
        assert [line["text"] for line in before["lines"]] == ["line 25", "line 26"]
        query = {"at": "worker-0:1:1:stdout.0:7", "after": 1}
        there = (await http.get("/api/v1/jobs/train/logs/page", params=query)).json()
        assert [line["text"] for line in there["lines"]] == ["line 1"]


async def test_a_search_over_http(rig: rigs.Rig) -> None:
    job = await logged(rig)
    async with rig.as_user("ann") as http:
        query = {"text": "LINE 1", "ignore_case": "true", "limit": 2, "at": "worker-0:1:1:stdout.0:7"}
        found = (await http.get(f"/api/v1/jobs/{job.id}/logs/search", params=query)).json()
        assert [line["text"] for line in found["lines"]] == ["line 1", "line 10"]
        assert (found["hits"], found["earlier"], found["previous"], found["whole"]) == (11, 0, None, True)


@pytest.mark.parametrize(
    ("rest", "status"),
    [
        ("page?at=x", 422),
        ("page?at=worker-0:1:1:stdout.0:9999", 404),
        ("page?before=5001", 422),
        ("page?role=ps", 404),
        ("page?tail=3", 422),
        ("search", 422),
        ("search?text=(&regex=true", 422),
        ("search?text=" + "a" * 1001, 422),
        ("search?text=a&limit=10001", 422),
        ("search?text=%0A", 422),
        ("search?text=a%0Ab", 422),
    ],
)
async def test_a_request_that_asks_for_too_much_or_for_nothing(rig: rigs.Rig, rest: str, status: int) -> None:
    job = await logged(rig)
    async with rig.as_user("ann") as http:
        answer = await http.get(f"/api/v1/jobs/{job.id}/logs/{rest}")
    assert (answer.status_code, bool(answer.json()["error"]["hint"])) == (status, True)


async def test_a_user_s_searches_run_one_after_another(rig: rigs.Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    job = await logged(rig)
    running, most = {"ann": 0, "root": 0}, {"ann": 0, "root": 0}
    go = asyncio.Event()
    whose = iter(["ann", "root", "ann", "ann"])

    async def search(*_: Any, **__: Any) -> tasklogs.LogHits:
        who = next(whose)
        running[who] += 1
        most[who] = max(most[who], running[who])
        if all(most.values()):
            go.set()
        await go.wait()
        running[who] -= 1
        return tasklogs.LogHits(hits=0, earlier=0, previous=None, lines=(), after="end")

    monkeypatch.setattr(rig.logs, "search", search)

    async def ask(who: str) -> int:
        async with rig.as_user(who) as http:
            return (await http.get(f"/api/v1/jobs/{job.id}/logs/search?text=a")).status_code

    assert await asyncio.gather(ask("ann"), ask("ann"), ask("ann"), ask("root")) == [200] * 4
    assert most == {"ann": 1, "root": 1}


async def test_only_a_few_searches_of_a_user_wait() -> None:
    waits = turns.Turns()
    go = asyncio.Event()

    async def search(user: str) -> None:
        async with waits.of(user):
            await go.wait()

    asked = [asyncio.create_task(search("ann")) for _ in range(turns.MOST_WAITING + 2)]
    other = asyncio.create_task(search("bob"))
    await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    assert [task.done() for task in asked].count(True) == 1
    go.set()
    ended = await asyncio.gather(*asked, other, return_exceptions=True)
    assert [type(one) for one in ended if one is not None] == [errors.Conflict]
    assert not waits._locks


async def test_a_search_ends_when_its_client_leaves() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def receive() -> Any:
        await begun.wait()
        return {"type": "http.disconnect"}

    async def search() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    call: Any = object.__new__(routes.Call)
    call.receive = receive
    with pytest.raises(errors.Truncated):
        await call.while_there(search())
    assert ended.is_set()
