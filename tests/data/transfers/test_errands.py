"""`python -m oarlock.data`: data comes and results go as a whole or not at all; failures name the next step."""

from __future__ import annotations

import functools
import hashlib
import http.server
import ipaddress
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests import objectstores

from oarlock.data.transfers import fetch, places, upload, weblinks
from oarlock.spec import errors
from oarlock.spec.hints import extras


class Done:
    """The output of a run of the command."""

    def __init__(self, process: subprocess.CompletedProcess[str]) -> None:
        self.code = process.returncode
        self.said = [json.loads(line) for line in process.stderr.splitlines()]
        self.result = process.stdout.splitlines()[-1] if process.stdout else ""

    @property
    def error(self) -> dict[str, Any]:
        return self.said[-1] if self.said and self.said[-1]["event"] == "error" else {}


def errand(*arguments: object, **env: str) -> Done:
    command = [sys.executable, "-m", "oarlock.data", *map(str, arguments)]
    return Done(subprocess.run(command, capture_output=True, text=True, timeout=280, env={**os.environ, **env}))


def tree(root: Path) -> dict[str, str]:
    return {path.relative_to(root).as_posix(): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


def fill(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


FILES = {"a.csv": "1,2\n", "deep/b.csv": "3,4\n", "deep/er/c d.csv": "5,6\n"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return fill(tmp_path / "source", FILES)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


class TestFetchingFiles:
    def test_a_directory(self, source: Path, work: Path) -> None:
        done = errand("fetch", f"file://{source}", work / "data" / "digits")
        assert (done.code, done.result) == (0, str(work / "data" / "digits"))
        assert tree(work / "data" / "digits") == FILES
        assert done.said[-1]["event"] == "progress"
        assert done.said[-1]["moved"] == {"files": 3, "total_files": 3, "bytes": 12, "total_bytes": 12}
        assert "3 of 3 files" in done.said[-1]["detail"]

    def test_a_file_becomes_dest_or_goes_into_it(self, source: Path, work: Path) -> None:
        assert fetch.run(str(source / "a.csv"), str(work / "x" / "train.csv")) == work / "x" / "train.csv"
        assert fetch.run(f"file://{source}/a.csv", f"{work}/y/") == work / "y" / "a.csv"
        assert fetch.run(f"file://{source}/deep/er/c%20d.csv", str(work)) == work / "c d.csv"
        assert {name for name in tree(work) if not name.split("/")[-2:-1] or "oarlock-fetch" not in name} == {
            "x/train.csv", "y/a.csv", "c d.csv",
        }  # fmt: skip

    def test_names_as_long_as_they_may_be_and_alike_in_all_but_their_end(self, tmp_path: Path, work: Path) -> None:
        source = tmp_path / "long"
        source.mkdir()
        names = ["字" * 85, *(f"{'x' * 250}{number}" for number in range(4))]
        for name in names:
            (source / name).write_text(name[-1] * 1_000_000)
        fetch.run(f"file://{source}", f"{work}/here")
        assert {path.name: path.read_text() for path in (work / "here").iterdir()} == {
            name: name[-1] * 1_000_000 for name in names
        }

    def test_again_is_nothing_to_do(self, source: Path, work: Path) -> None:
        fetch.run(str(source), str(work / "data"))
        inode = (work / "data" / "a.csv").stat().st_ino
        fetch.run(str(source), str(work / "data"))
        assert (work / "data" / "a.csv").stat().st_ino == inode

    def test_a_file_that_is_there_is_never_overwritten(self, source: Path, work: Path) -> None:
        fill(work / "data", {"mine.txt": "mine"})
        done = errand("fetch", source, work / "data")
        assert (done.code, done.error["code"]) == (2, "invalid_input")
        assert "exists already" in done.error["message"]
        assert done.error["hint"]
        assert tree(work / "data") == {"mine.txt": "mine"}

    def test_a_changed_source_is_not_passed_off_as_the_old_one(self, source: Path, work: Path) -> None:
        fetch.run(str(source), str(work / "data"))
        (source / "a.csv").write_text("9,9,9\n")
        with pytest.raises(errors.InvalidInput, match="other content"):
            fetch.run(str(source), str(work / "data"))

    def test_an_empty_directory_in_the_way_is_none(self, source: Path, work: Path) -> None:
        (work / "data").mkdir()
        fetch.run(str(source), str(work / "data"))
        assert tree(work / "data") == FILES

    def test_files_that_were_fetched_before_a_kill_are_kept(
        self, source: Path, work: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fetch, "put_in_place", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch.run(str(source), str(work / "data"))
        assert not (work / "data").exists()
        monkeypatch.undo()
        part = work / ".data.oarlock-fetch" / "files" / "a.csv"
        inode = part.stat().st_ino
        (part.parent / "deep" / "b.csv").unlink()
        fetch.run(str(source), str(work / "data"))
        assert tree(work / "data") == FILES
        assert (work / "data" / "a.csv").stat().st_ino == inode

    def test_files_that_were_fetched_of_another_source_are_not(
        self, source: Path, work: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fetch, "put_in_place", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch.run(str(source), str(work / "data"))
        monkeypatch.undo()
        (source / "a.csv").write_text("7,8\n")
        fetch.run(str(source), str(work / "data"))
        assert tree(work / "data")["a.csv"] == "7,8\n"

    def test_killed_at_any_time(self, tmp_path: Path, work: Path) -> None:
        """Whole or not there, and a last run completes it."""
        files = {f"{number}.bin": str(number) * 20_000 for number in range(60)}
        source = fill(tmp_path / "many", files)
        for number in range(6):
            process = subprocess.Popen(
                [sys.executable, "-m", "oarlock.data", "fetch", str(source), str(work / "data")],
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )  # fmt: skip
            assert process.stderr is not None
            process.stderr.readline()
            threading.Event().wait(0.03 * number)
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=280)
            assert not (work / "data").exists() or tree(work / "data") == files
        fetch.run(str(source), str(work / "data"))
        assert tree(work / "data") == files

    def test_tasks_that_share_a_disk_fetch_once(self, source: Path, work: Path) -> None:
        command = [sys.executable, "-m", "oarlock.data", "fetch", str(source), str(work / "data")]
        processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)]
        assert [process.communicate(timeout=280) and process.returncode for process in processes] == [0, 0, 0]
        assert tree(work / "data") == FILES

    def test_a_full_disk_is_seen_before(self, source: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 5, 5))
        with pytest.raises(errors.Unavailable, match="12 B, but only 5 B are free"):
            fetch.run(str(source), str(work / "data"))


@pytest.mark.parametrize(
    ("url", "code", "words"),
    [
        ("ftp://host/x", "invalid_input", "file, http, https, s3, gs"),
        ("github://x:y@z/", "invalid_input", "file, http"),
        ("relative/path", "invalid_input", "absolute path"),
        ("file://otherhost/x", "invalid_input", "file:///"),
        ("", "invalid_input", "absolute path"),
        ("/nowhere/at/all", "not_found", "check the URL"),
        ("http://127.0.0.1:9/x/", "invalid_input", "separate source"),
        ("http://169.254.169.254/latest/meta-data", "forbidden", "another source"),
        ("http://[::ffff:169.254.169.254]/x", "forbidden", "another source"),
        ("http://0.0.0.0/x", "forbidden", "another source"),
    ],
)
def test_sources_that_are_none(work: Path, url: str, code: str, words: str) -> None:
    with pytest.raises(errors.OarlockError) as caught:
        fetch.run(url, str(work / "data"))
    assert caught.value.code == code
    assert words in caught.value.hint
    assert not (work / "data").exists()


def test_a_scheme_whose_extra_is_missing_names_it(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("gcsfs", "s3fs"):
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(errors.InvalidInput, match="gs://") as caught:
        fetch.run("gs://bucket/x", str(work / "data"))
    assert caught.value.hint == f"On the server's machine: {extras.command('gs')}"


@pytest.mark.parametrize("name", ["b/../../x", "b/./x", "b//x", "b/\0", "b/.."])
def test_an_objects_name_never_leads_out(name: str) -> None:
    with pytest.raises(errors.InvalidInput):
        places.relative(name, "b", "s3://b")


class Site(http.server.BaseHTTPRequestHandler):
    """Serves `pages`: bytes, a redirect, or a status; can break off and resume."""

    pages: ClassVar[dict[str, Any]] = {}
    asked: ClassVar[list[tuple[str, str, str | None]]] = []
    break_at: ClassVar[int | None] = None

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        page = self.pages.get(self.path, 404)
        self.asked.append((self.command, self.path, self.headers.get("Range")))
        if isinstance(page, bytes):
            self.send_page(page)
            return
        self.send_response(302 if isinstance(page, str) else page)
        if isinstance(page, str):
            self.send_header("Location", page)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def send_page(self, page: bytes) -> None:
        etag = f'"{hashlib.sha256(page).hexdigest()[:8]}"'
        start = 0
        if self.headers.get("Range") and self.headers.get("If-Range") == etag:
            start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
        self.send_response(206 if start else 200)
        self.send_header("ETag", etag)
        self.send_header("Content-Length", str(len(page) - start))
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.break_at is not None and start < self.break_at:
            self.wfile.write(page[start : self.break_at])
            self.wfile.flush()
            self.connection.close()
            return
        self.wfile.write(page[start:])

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def site() -> Iterator[tuple[str, type[Site]]]:
    handler = type("OneSite", (Site,), {"pages": {}, "asked": [], "break_at": None})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=functools.partial(server.serve_forever, poll_interval=0.02), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()
    server.server_close()
    thread.join(10)


class TestFetchingFromTheWeb:
    def test_a_file(self, site: tuple[str, type[Site]], work: Path) -> None:
        url, handler = site
        handler.pages |= {"/d/train%20set.csv?v=1": b"1,2\n", "/old": "/d/train%20set.csv?v=1"}
        assert errand("fetch", f"{url}/d/train%20set.csv?v=1", f"{work}/").result == str(work / "train set.csv")
        assert fetch.run(f"{url}/old", str(work / "b.csv")).read_bytes() == b"1,2\n"

    def test_a_download_that_breaks_off_goes_on(self, site: tuple[str, type[Site]], work: Path) -> None:
        url, handler = site
        page = os.urandom(1 << 20)
        handler.pages["/x"] = page
        handler.break_at = 700_000
        assert fetch.run(f"{url}/x", str(work / "x")).read_bytes() == page
        resumed = [asked[2] for asked in handler.asked if asked[2]]
        assert resumed
        assert resumed[-1] == "bytes=700000-"

    @pytest.mark.parametrize(("status", "code"), [(404, "not_found"), (403, "forbidden"), (500, "unavailable")])
    def test_the_sources_that_the_server_refuses(
        self, site: tuple[str, type[Site]], work: Path, status: int, code: str
    ) -> None:
        url, handler = site
        handler.pages["/x"] = status
        with pytest.raises(errors.OarlockError) as caught:
            fetch.run(f"{url}/x", str(work / "x"))
        assert caught.value.code == code

    def test_a_redirect_to_where_credentials_lie_is_refused(self, site: tuple[str, type[Site]], work: Path) -> None:
        url, handler = site
        handler.pages["/x"] = "http://169.254.169.254/latest/meta-data/iam"
        handler.pages["/y"] = "file:///etc/passwd"
        handler.pages["/z"] = "/z"
        assert errand("fetch", f"{url}/x", work / "x").error["code"] == "forbidden"
        with pytest.raises(errors.InvalidInput, match="not an http or https"):
            fetch.run(f"{url}/y", str(work / "y"))
        with pytest.raises(errors.Unavailable, match="without end"):
            fetch.run(f"{url}/z", str(work / "z"))

    def test_a_public_server_does_not_lead_inside(self) -> None:
        inside = ipaddress.ip_address("10.0.0.1")
        weblinks.check_address("http://x", inside, from_public=False)
        with pytest.raises(errors.Forbidden, match="private"):
            weblinks.check_address("http://x", inside, from_public=True)

    def test_nor_by_a_redirect(self, site: tuple[str, type[Site]], work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        url, handler = site
        handler.pages |= {"/x": url.replace("127.0.0.1", "127.0.0.2") + "/y", "/y": b"secret"}
        monkeypatch.setattr(weblinks, "is_public", lambda address: str(address) == "127.0.0.1")
        with pytest.raises(errors.Forbidden, match=r"redirects to http://127\.0\.0\.2"):
            fetch.run(f"{url}/x", str(work / "x"))

    def test_a_server_that_is_not_there(self, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(errors.Unavailable):
            fetch.run("http://127.0.0.1:9/x", str(work / "x"))


class TestObjectStores:
    def test_there_and_back(self, bucket: objectstores.Bucket, source: Path, work: Path) -> None:
        stored = errand("store", source, f"{bucket.url}/out", **bucket.env)
        assert (stored.code, stored.result) == (0, "3"), stored.said
        fetched = errand("fetch", f"{bucket.url}/out", work / "data", **bucket.env)
        assert (fetched.code, fetched.result) == (0, str(work / "data")), fetched.said
        assert tree(work / "data") == FILES
        one = errand("fetch", f"{bucket.url}/out/deep/b.csv", work / "b.csv", **bucket.env)
        assert one.code == 0
        assert (work / "b.csv").read_text() == FILES["deep/b.csv"]
        missing = errand("fetch", f"{bucket.url}/nothing", work / "nothing", **bucket.env)
        assert (missing.code, missing.error["code"]) == (1, "not_found")

    def test_an_object_that_climbs_is_refused(self, bucket: objectstores.Bucket, work: Path) -> None:
        for key in ("evil/a", "evil/../../../etc/cron.d/x"):
            bucket.put(key, b"x")
        done = errand("fetch", f"{bucket.url}/evil", work / "data", **bucket.env)
        assert done.error["code"] == "invalid_input", done.said
        assert not (work / "data").exists()


class TestStoring:
    def test_a_folder(self, source: Path, work: Path) -> None:
        (source / "latest.csv").symlink_to("a.csv")
        (source / "secret").symlink_to("/etc/hostname")
        os.mkfifo(source / "pipe")
        done = errand("store", source, f"file://{work}/out")
        assert (done.code, done.result) == (0, "4")
        assert tree(work / "out") == {**FILES, "latest.csv": FILES["a.csv"]}
        assert sum("not stored" in said["detail"] for said in done.said) == 2

    def test_nothing_is_no_error(self, work: Path) -> None:
        (work / "results").mkdir()
        assert upload.run(str(work / "results"), f"file://{work}/out") == 0

    def test_the_manifest_goes_last(self, source: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        fill(source, {"manifest.json": "{}", "0/manifest.json": "{}", "z.bin": "x"})
        sent: list[str] = []

        def noting(*_: object) -> Callable[[Path, str], None]:
            return lambda path, name: sent.append(name)

        monkeypatch.setattr(upload, "to_folder", noting)
        upload.run(str(source), f"file://{work}/out")
        assert sent[-2:] == ["0/manifest.json", "manifest.json"]
        assert len(sent) == 6

    @pytest.mark.parametrize("url", ["http://host/x", "ftp://host/x", "out"])
    def test_places_that_are_none(self, source: Path, url: str) -> None:
        assert errand("store", source, url).code == 2

    def test_a_directory_that_is_none(self, work: Path) -> None:
        assert errand("store", work / "missing", f"file://{work}/out").error["code"] == "invalid_input"


def test_a_wrong_command_is_a_usage_error() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "oarlock.data", "frobnicate"], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 2


def test_nothing_is_fetched_from_the_servers_home_and_nothing_stored_there(tmp_path: Path) -> None:
    """A link that was made after the job was submitted is met here."""
    home = fill(tmp_path / "home", {"token": "topsecret", "results/j-1/out": "1"})
    outside = fill(tmp_path / "outside", {"a": "1"})
    (outside / "b").symlink_to(home / "token")
    (tmp_path / "link").symlink_to(home)
    for source in (home / "token", tmp_path / "link" / "token", outside, f"file://{outside}/b", tmp_path):
        done = errand("--home", home, "fetch", source, tmp_path / "dest")
        assert done.code == 2, done.said
        assert "home of the server" in done.error["message"]
    assert not (tmp_path / "dest").exists()
    for place in (home, home / "secrets", tmp_path / "link"):
        assert "home of the server" in errand("--home", home, "store", outside, place).error["message"]
    assert errand("--home", home, "store", outside, f"file://{home}/results/j-1").code == 0
