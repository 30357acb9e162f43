"""A task's helper with a store that is slow, breaks off, changes an object or is dead. The time is virtual."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from oarlock.data.transfers import fetch, patience, places, reporting, serverplaces, signedplaces, upload, weblinks
from oarlock.spec import errors

KEY = "job/attempt-1-round-1-step-10/rank-0.pt"
CONTENT = bytes(range(100))
ETAG = '"one"'
BLOCK_S = 0.7 * patience.PATIENCE_S


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
    assert clock.now > 6 * patience.PATIENCE_S


def test_an_upload_is_waited_for_as_long_as_bytes_go(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signedplaces, "BLOCK_BYTES", 10)
    (tmp_path / "file").write_bytes(CONTENT)
    store, callback = Store(clock, blocks=1, block_s=BLOCK_S), Callback()
    place(clock, store).put_file(str(tmp_path / "file"), KEY, callback)
    assert (store.took, callback.bytes) == (CONTENT, len(CONTENT))
    assert clock.now > 6 * patience.PATIENCE_S


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
    assert patience.PATIENCE_S <= clock.now <= patience.PATIENCE_S + patience.PAUSE_MOST_S


def test_a_dead_store_is_asked_ever_more_seldom(clock: Clock, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock.sleep(seconds)

    with pytest.raises(errors.Unavailable, match="PUT"):
        signedplaces.SignedPlace(None, sleep, clock.monotonic, Dead()).put_file(str(tmp_path / "file"), KEY, Callback())
    assert pauses[:7] == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]


class Site:
    """A web server's client whose answer breaks off behind a block of ten bytes. It knows ranges if `ranges`."""

    def __init__(self, clock: Clock, *, ranges: bool = True, status: int = 200, block_s: float = BLOCK_S) -> None:
        self.clock, self.ranges, self.status, self.block_s = clock, ranges, status, block_s
        self.asked = 0

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: object) -> None: ...

    @contextlib.contextmanager
    def ask(self, _method: str, _url: str, headers: dict[str, str]) -> Iterator[httpx.Response]:
        self.asked += 1
        start = int(headers.get("Range", "bytes=0-")[6:-1]) if self.ranges else 0
        body = Breaking(CONTENT[start:], self.clock, 1 if start < 90 else 2, self.block_s)
        yield httpx.Response(206 if start else self.status, stream=body)


def from_web(site: Site, target: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many bytes were counted."""
    monkeypatch.setattr(weblinks, "Client", lambda: site)
    counted: list[int] = []
    waiting = patience.Patience(site.clock.monotonic, site.clock.sleep)
    weblinks.fetch(places.Item("x", "http://h/x", len(CONTENT), ETAG), target, counted.append, waiting)
    return sum(counted)


def test_a_file_of_the_web_is_waited_for_as_long_as_bytes_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    site = Site(clock)
    assert from_web(site, tmp_path / "x", monkeypatch) == len(CONTENT)
    assert (tmp_path / "x").read_bytes() == CONTENT
    assert clock.now > 6 * patience.PATIENCE_S


@pytest.mark.parametrize("status", [200, 503, 429])
def test_a_dead_web_server_is_given_up_after_the_time_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """Its first bytes come again and again, or none: neither is progress."""
    clock = Clock()
    site = Site(clock, ranges=False, status=status, block_s=0.0)
    with pytest.raises(errors.GivenUp, match=r"nothing has moved for 3\d\d s"):
        from_web(site, tmp_path / "x", monkeypatch)
    assert patience.PATIENCE_S <= clock.now <= patience.PATIENCE_S + patience.PAUSE_MOST_S
    assert 20 < site.asked < 40


def test_a_refusal_of_the_web_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(Clock(), status=400)
    with pytest.raises(errors.Unavailable, match="status 400"):
        from_web(site, tmp_path / "x", monkeypatch)
    assert (site.asked, site.clock.now) == (1, 0.0)


class Bucket:
    """A file system of fsspec that fails: each try moves ten bytes more than the one before, if it `moves`."""

    def __init__(self, clock: Clock, error: Exception, *, moves: bool) -> None:
        self.clock, self.error, self.moves = clock, error, moves
        self.asked = 0

    def _move(self, callback: Any) -> int:
        self.asked += 1
        most = 10 * self.asked if self.moves else 0
        for _ in range(0, most, 10):
            callback.relative_update(10)
        self.clock.sleep(BLOCK_S)
        if most < len(CONTENT):
            raise self.error
        return most

    def get_file(self, _path: str, target: str, callback: Any) -> None:
        Path(target).write_bytes(CONTENT[: self._move(callback)])

    def put_file(self, _path: str, _target: str, callback: Any) -> None:
        self._move(callback)


def transfer(bucket: Bucket, verb: str, folder: Path, meter: reporting.Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, file = bucket.clock, folder / "file"
    waiting = patience.Patience(clock.monotonic, clock.sleep)
    if verb == "get":
        item = places.Item("x", "bucket/x", len(CONTENT), "v")
        fetch.copied(bucket, "s3://bucket", item, file, meter, waiting)
    else:
        file.write_bytes(CONTENT)
        monkeypatch.setattr(places, "filesystem", lambda *_: (bucket, "bucket"))
        monkeypatch.setattr(patience, "Patience", lambda: waiting)
        upload.to_objects("s3://bucket", meter)(file, "x")


@pytest.mark.parametrize("verb", ["get", "put"])
def test_a_bucket_is_waited_for_as_long_as_bytes_move(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Ten tries of 210 s each. The bytes that came twice are counted once."""
    bucket = Bucket(Clock(), ConnectionResetError("gone"), moves=True)
    meter = reporting.Meter("moved", 1, len(CONTENT))
    transfer(bucket, verb, tmp_path, meter, monkeypatch)
    meter.done()
    assert bucket.asked == 10
    assert f'"bytes": {len(CONTENT)},' in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("verb", ["get", "put"])
@pytest.mark.parametrize(
    ("error", "tries"),
    [(ConnectionResetError("gone"), 2), (OSError(errno.ENOSPC, "full"), 3), (PermissionError("no"), 1)],
)
def test_a_dead_bucket_and_what_time_does_not_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, error: Exception, tries: int
) -> None:
    """A dead one by time; a full disk at the third try (here within the time); a refusal at once."""
    bucket = Bucket(Clock(), error, moves=False)
    monkeypatch.setattr(patience, "PATIENCE_S", 1.5 * BLOCK_S if tries == 2 else 1000 * BLOCK_S)
    with pytest.raises(errors.OarlockError, match="nothing has moved for" if tries == 2 else "full|no"):
        transfer(bucket, verb, tmp_path, reporting.Meter("moved", 1, len(CONTENT)), monkeypatch)
    assert bucket.asked == tries


def test_a_wait_is_told_while_it_lasts(capsys: pytest.CaptureFixture[str]) -> None:
    """The task's detail names the reason, so that nobody has to guess why nothing moves."""
    tries = iter([errors.Unavailable("the store is away")])

    def attempt() -> str:
        for error in tries:
            raise error
        return "done"

    assert patience.tried(attempt, patience.Patience(sleep=lambda _: None)) == "done"
    assert "the store is away: it is tried again" in capsys.readouterr().err
