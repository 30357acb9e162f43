"""Connections for writes: answers in every form that servers give them, and connections that fail."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from oarlock.backends.kubernetes.apiserver import credentials, writing

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n"
ANSWERS = [
    ("a length", OK, (200, b"ok", True)),
    ("a length, more bytes after it", OK + b"x", (200, b"ok", False)),
    ("an empty body", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", (200, b"", True)),
    ("no body", b"HTTP/1.1 204 No Content\r\n\r\n", (204, b"", True)),
    ("chunks", CHUNKED + b"2\r\nab\r\n10;x=y\r\n0123456789abcdef\r\n0\r\n\r\n", (201, b"ab0123456789abcdef", True)),
    ("chunks that look like an end", CHUNKED + b"5\r\n0\r\n\r\n\r\n0\r\n\r\n", (201, b"0\r\n\r\n", True)),
    ("headers after chunks", CHUNKED + b"1\r\na\r\n0\r\nX-More: 1\r\n\r\n", (201, b"a", True)),
    ("hints before it", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK, (200, b"ok", True)),
    ("the connection's last", OK.replace(b"\r\n\r\n", b"\r\nConnection: Close\r\n\r\n"), (200, b"ok", False)),
    ("an old server", OK.replace(b"1.1", b"1.0"), (200, b"ok", False)),
]


@pytest.mark.parametrize(("data", "told"), [one[1:] for one in ANSWERS], ids=[one[0] for one in ANSWERS])
def test_an_answer_is_read_once_it_is_whole(data: bytes, told: tuple[int, bytes, bool]) -> None:
    found = writing.parse(bytearray(data), ended=False)
    assert found is not None
    assert (found.status, found.body, found.stays) == told
    whole = len(data) - data.endswith(b"x")
    assert [end for end in range(whole) if writing.parse(bytearray(data[:end]), ended=False) is not None] == []


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    data = bytearray(b"HTTP/1.1 500 Oh\r\nRetry-After: 3\r\n\r\nbroken")
    assert writing.parse(data, ended=False) is None
    assert writing.parse(data, ended=True) == (500, {"retry-after": "3"}, b"broken", False)


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 ok\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n",
        CHUNKED + b"zz\r\n\r\n",
        CHUNKED + b"-4\r\n\r\n",
        b"x" * (writing.MOST_HEAD_BYTES + 1),
    ],
)
def test_something_else_is_not_an_answer(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"begins|base 16|no end|negative"):
        writing.parse(bytearray(data), ended=False)


Play = Callable[[asyncio.StreamReader, asyncio.StreamWriter, int], Awaitable[None]]


@contextlib.asynccontextmanager
async def server(play: Play, limit: int = 2) -> AsyncIterator[tuple[writing.Pool, list[bytes]]]:
    """A server that plays with each request, and the heads and bodies that it got."""
    asked: list[bytes] = []
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        number = len(writers)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
                asked.append(head + await reader.readexactly(size))
                await play(reader, writer, number)

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    access = credentials.Access(server=f"http://127.0.0.1:{port}/root/", identity=credentials.Fixed({}))
    pool = writing.Pool(access, limit, connect_s=5.0, agent="test")
    try:
        yield pool, asked
    finally:
        await pool.close()
        for writer in writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        listening.close()
        await listening.wait_closed()


async def send(pool: writing.Pool, path: str = "/pods", quiet_s: float = 60.0) -> writing.Answer:
    return await pool.send("POST", path, {"a": "b c"}, {"Accept": "x"}, b"body", quiet_s)


async def well(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d" % number)


async def test_a_connection_is_used_again_and_the_request_is_whole() -> None:
    async with server(well) as (pool, asked):
        assert [(await send(pool, "/pods/ä b")).body for _ in range(3)] == [b"1"] * 3
        assert asked[0].startswith(b"POST /root/pods/%C3%A4%20b?a=b+c HTTP/1.1\r\nHost: 127.0.0.1:")
        assert asked[0].endswith(b"\r\nAccept: x\r\nContent-Length: 4\r\n\r\nbody")


async def test_no_more_connections_than_the_limit() -> None:
    async with server(well) as (pool, asked):
        bodies = {answer.body for answer in await asyncio.gather(*[send(pool) for _ in range(20)])}
        assert bodies == {b"1", b"2"}
        assert len(asked) == 20


async def test_a_connection_that_the_server_closes_is_not_used_again() -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\n%d" % number)
        writer.close()

    async with server(once) as (pool, _):
        assert [(await send(pool)).body for _ in range(3)] == [b"1", b"2", b"3"]


async def test_a_request_that_is_broken_off_leaves_its_answer_to_nobody_else() -> None:
    come = asyncio.Event()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        if number == 1:
            come.set()
            await reader.read()  # until the connection is closed
        await well(reader, writer, number)

    async with server(late, limit=1) as (pool, _):
        first = asyncio.create_task(send(pool))
        second = asyncio.create_task(send(pool))
        await come.wait()
        first.cancel()
        assert (await second).body == b"2"
        assert isinstance((await asyncio.gather(first, return_exceptions=True))[0], asyncio.CancelledError)


async def test_a_server_that_says_nothing_or_too_little_is_given_up() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        if number == 2:
            writer.close()

    async with server(mute) as (pool, _):
        with pytest.raises(writing.Broken, match=r"no byte came for 0\.2 s"):
            await send(pool, quiet_s=0.2)
        with pytest.raises(writing.Broken, match="closed before the answer was whole"):
            await send(pool)


async def test_where_nothing_listens_each_request_is_refused() -> None:
    access = credentials.Access(server="http://127.0.0.1:1", identity=credentials.Fixed({}))
    pool = writing.Pool(access, 1, connect_s=5.0, agent="test")
    failed = await asyncio.gather(send(pool), send(pool), return_exceptions=True)
    assert [type(error) for error in failed] == [writing.Broken] * 2
    await pool.close()


async def test_a_header_cannot_bring_another_one() -> None:
    async with server(well) as (pool, asked):
        with pytest.raises(writing.Broken, match="line break"):
            await pool.send("POST", "/", {}, {"Authorization": "Bearer x\nX-More: 1"}, b"", 1.0)
        assert asked == []
