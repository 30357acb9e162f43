"""Look-ups that are answered by one reading, which begins after all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Set

import pytest

from oarlock.api import gathering


class Store:
    """Answers with its state at the beginning of a reading, once it is let go."""

    def __init__(self) -> None:
        self.state = 0
        self.read: list[set[str]] = []
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.failure: Exception | None = None

    async def __call__(self, keys: Set[str]) -> dict[str, str]:
        state = self.state
        self.read.append(set(keys))
        self.begun.set()
        await self.go.wait()
        if self.failure is not None:
            raise self.failure
        return {key: f"{key}{state}" for key in keys}


async def test_look_ups_of_one_moment_share_a_reading() -> None:
    store = Store()
    store.go.set()
    gathered = gathering.Gathering(store)
    assert await asyncio.gather(*map(gathered.find, "abab")) == ["a0", "b0", "a0", "b0"]
    assert store.read == [{"a", "b"}]


async def test_a_look_up_never_gets_an_answer_of_a_reading_that_had_begun() -> None:
    store = Store()
    gathered = gathering.Gathering(store)
    first = asyncio.create_task(gathered.find("a"))
    await store.begun.wait()
    store.state = 1
    second = asyncio.create_task(gathered.find("a"))
    await asyncio.sleep(0)
    store.go.set()
    assert await asyncio.gather(first, second) == ["a0", "a1"]


async def test_a_failure_reaches_all_and_is_not_kept() -> None:
    store = Store()
    store.go.set()
    store.failure = ConnectionError("gone")
    gathered = gathering.Gathering(store)
    answers = await asyncio.gather(*map(gathered.find, "ab"), return_exceptions=True)
    assert answers == [store.failure] * 2
    store.failure = None
    assert await gathered.find("a") == "a0"


async def test_a_look_up_that_is_given_up_leaves_the_others_their_answer() -> None:
    store = Store()
    gathered = gathering.Gathering(store)
    one, other = (asyncio.create_task(gathered.find(key)) for key in "ab")
    await store.begun.wait()
    one.cancel()
    with pytest.raises(asyncio.CancelledError):
        await one
    store.go.set()
    assert await other == "b0"
