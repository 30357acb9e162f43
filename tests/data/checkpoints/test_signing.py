"""The installation's object store: requests to a store that does not answer hold up nothing else."""

from __future__ import annotations

import asyncio
import socket

import pytest

from oarlock.data.checkpoints import signing


async def test_a_store_that_does_not_answer_holds_up_no_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=256) as silent:  # takes connections, and says nothing
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "x")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        monkeypatch.setattr(signing, "READ_TIMEOUT_S", 1)
        objects = signing.SignedObjects("s3://bucket")
        waiting = [asyncio.create_task(objects.listed("job")) for _ in range(100)]
        try:
            await asyncio.sleep(0)
            assert await asyncio.to_thread(lambda: 42) == 42
            assert not any(one.done() for one in waiting)
        finally:
            for one in waiting:
                one.cancel()
            objects.close()
            await asyncio.gather(*waiting, return_exceptions=True)
