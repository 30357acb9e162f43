"""A watch on which nothing happens, and the date of an answer."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from tests.backends.kubernetes.testcluster import apiserver

from oarlock.backends.kubernetes.apiserver import client, credentials, objects, watches

LIST = b'{"metadata": {"resourceVersion": "7"}, "items": []}'


async def test_a_quiet_watch_begins_again_where_it_ended(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is no failure: it neither warns nor lists anew."""
    monkeypatch.setattr(client, "QUIET_S", 2.0)  # a busy machine may take a while for the beginning of an answer
    asked: list[str] = []
    thrice = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head.split()[1].decode())
        if "watch=true" not in asked[-1]:
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(LIST), LIST))
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            if len(asked) > 3:
                thrice.set()
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    (port,) = apiserver.free_ports(1)
    server = await asyncio.start_server(answer, "127.0.0.1", port)
    access = credentials.Access(server=f"http://127.0.0.1:{port}", identity=credentials.Fixed({}))
    async with server, client.Client(access) as api:
        watch = watches.Watch(api, "/api/v1/pods", objects.Bare, lambda item: item, monotonic=time.monotonic)
        following = asyncio.create_task(watch.run())
        async with asyncio.timeout(240):
            await thrice.wait()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    assert ["watch=true" in one for one in asked[:4]] == [False, True, True, True]
    assert all("resourceVersion=7" in one for one in asked[1:4])
    said = "".join(capfd.readouterr())
    assert "watch_failed" not in said


async def test_the_date_of_each_answer_is_told() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        dated = b"Date: Thu, 01 Jan 2026 13:00:12 GMT\r\n"
        writer.write(b"HTTP/1.1 200 OK\r\n%bConnection: close\r\nContent-Length: 2\r\n\r\n{}" % dated)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    access = credentials.Access(
        server=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", identity=credentials.Fixed({})
    )
    told: list[str] = []
    async with server, client.Client(access) as api:
        api.dated = told.append
        await api.get("/version", objects.Version)
    assert told == ["Thu, 01 Jan 2026 13:00:12 GMT"]
