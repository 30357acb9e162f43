"""A task's helper with an object store that is slow, breaks off, changes an object or is dead. The time is virtual."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from oarlock.data.transfers import serverplaces, signedplaces
from oarlock.spec import errors

KEY = "job/attempt-1-round-1-step-10/rank-0.pt"
CONTENT = bytes(range(100))
ETAG = '"one"'
BLOCK_S = 0.7 * signedplaces.PATIENCE_S


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def monotonic(self) -> float:
        return self.now


class Server:
    """Gives the same URL for each request."""

    def __init__(self, *_: object) -> None:
        pass

    def ask(self, _method: str, _path: str, _body: bytes = b"") -> bytes:
        return b'{"url": "http://store/object"}'


class Breaking(httpx.SyncByteStream):
    """Blocks of 10 bytes, each after a time. The connection breaks behind `most` blocks."""

    def __init__(self, content: bytes, clock: Clock, most: int, block_s: float) -> None:
        self._content, self._clock, self._most, self._block_s = content, clock, most, block_s

    def __iter__(self) -> Iterator[bytes]:
        for number, start in enumerate(range(0, len(self._content), 10)):
            if number == self._most:
                raise httpx.RemoteProtocolError("peer closed connection")
            self._clock.sleep(self._block_s)
            yield self._content[start : start + 10]


class Store(httpx.BaseTransport):
    """Keeps an object. `asked` has the headers of each request; `took` what a PUT brought whole."""

    def __init__(self, clock: Clock, blocks: int, block_s: float = 0.0, ranges: bool = True, etag: str = ETAG) -> None:
        self.clock, self.blocks, self.block_s, self.ranges, self.etag = clock, blocks, block_s, ranges, etag
        self.asked: list[httpx.Headers] = []
        self.took = b""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.headers)
        return self._taken(request) if request.method == "PUT" else self._given(request)

    def _given(self, request: httpx.Request) -> httpx.Response:
        if request.headers.get("if-match", self.etag) != self.etag:
            return httpx.Response(412)
        start = int(request.headers.get("range", "bytes=0-")[6:-1]) if self.ranges else 0
        body = Breaking(CONTENT[start:], self.clock, self.blocks, self.block_s)
        headers = {"ETag": self.etag} if self.etag else {}
        return httpx.Response(206 if start else 200, headers=headers, stream=body)

    def _taken(self, request: httpx.Request) -> httpx.Response:
        """Take more blocks with each request, until it is the whole file."""
        took = b""
        assert isinstance(request.stream, httpx.SyncByteStream)
        for number, block in enumerate(request.stream):
            if number == self.blocks * len(self.asked):
                raise httpx.WriteError("broken pipe")
            took += block
            if number >= self.blocks * (len(self.asked) - 1):
                self.clock.sleep(self.block_s)
        self.took = took
        return httpx.Response(200, headers={"ETag": self.etag})


class Dead(httpx.BaseTransport):
    def handle_request(self, request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(serverplaces, "ServerPlace", Server)
    return Clock()


def place(clock: Clock, store: httpx.BaseTransport) -> signedplaces.SignedPlace:
    return signedplaces.SignedPlace(None, clock.sleep, clock.monotonic, store)


class Callback:
    def __init__(self) -> None:
        self.bytes = 0

    def relative_update(self, count: int) -> None:
        self.bytes += count


def rest(content: signedplaces.Blocks) -> bytes:
    return b"".join(iter(content.read, b""))


def test_a_download_is_waited_for_as_long_as_bytes_come(clock: Clock) -> None:
    """Ten blocks of 210 s each, and the connection breaks behind each block: 35 minutes, and whole."""
    store = Store(clock, blocks=1, block_s=BLOCK_S)
    assert place(clock, store).cat_file(KEY) == CONTENT
    assert len(store.asked) == 10
    assert clock.now > 6 * signedplaces.PATIENCE_S


def test_an_upload_is_waited_for_as_long_as_bytes_go(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signedplaces, "BLOCK_BYTES", 10)
    (tmp_path / "file").write_bytes(CONTENT)
    store, callback = Store(clock, blocks=1, block_s=BLOCK_S), Callback()
    place(clock, store).put_file(str(tmp_path / "file"), KEY, callback)
    assert (store.took, callback.bytes) == (CONTENT, len(CONTENT))
    assert clock.now > 6 * signedplaces.PATIENCE_S


def test_a_download_that_breaks_off_goes_on_behind_its_bytes(clock: Clock, tmp_path: Path) -> None:
    store, callback = Store(clock, blocks=4), Callback()
    place(clock, store).get_file(KEY, str(tmp_path / "file"), callback)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert callback.bytes == len(CONTENT)
    asked = [(headers.get("range"), headers.get("if-match")) for headers in store.asked]
    assert asked == [(None, None), ("bytes=40-", ETAG), ("bytes=80-", ETAG)]


def test_a_store_without_versions_gets_no_empty_condition(clock: Clock) -> None:
    store = Store(clock, blocks=4, etag="")
    assert place(clock, store).cat_file(KEY) == CONTENT
    assert not any("if-match" in headers for headers in store.asked)


def test_a_store_that_knows_no_ranges_gives_the_bytes_again(clock: Clock) -> None:
    """The bytes that have come already are passed over."""
    store = Store(clock, blocks=7, ranges=False)
    with place(clock, store).open(KEY) as content:
        came = content.read()
        while block := content.read():
            came += block
            store.blocks = 100 if len(came) == 70 else store.blocks
    assert came == CONTENT


def test_an_object_that_changed_meanwhile_ends_the_download_at_once(clock: Clock) -> None:
    """Otherwise the file would be half of one object and half of another."""
    store = Store(clock, blocks=4)
    with place(clock, store).open(KEY) as content:
        assert content.read() == CONTENT[:10]
        store.etag = '"two"'
        with pytest.raises(errors.Unavailable, match=f"{KEY} changed while it was read"):
            rest(content)
    assert len(store.asked) == 2
    assert clock.now < 1


@pytest.mark.parametrize("store", [lambda _: Dead(), lambda clock: Store(clock, blocks=0)])
def test_a_dead_store_is_told_with_seconds_and_the_next_step(
    clock: Clock, store: Callable[[Clock], httpx.BaseTransport]
) -> None:
    """No connection; or an answer that always breaks off at the same byte."""
    with pytest.raises(errors.Unavailable, match=r"GET .*Error, and nothing of it has moved for 3\d\d s") as raised:
        place(clock, store(clock)).cat_file(KEY)
    assert "docs/kubernetes.md" in (raised.value.hint or "")
    assert signedplaces.PATIENCE_S <= clock.now <= signedplaces.PATIENCE_S + signedplaces.PAUSE_MOST_S


def test_a_dead_store_is_asked_ever_more_seldom(clock: Clock, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock.sleep(seconds)

    with pytest.raises(errors.Unavailable, match="PUT"):
        signedplaces.SignedPlace(None, sleep, clock.monotonic, Dead()).put_file(str(tmp_path / "file"), KEY, Callback())
    assert pauses[:7] == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]
