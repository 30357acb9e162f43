"""Downloads through both clients from a server that listens: whole files or none, resumed, never over another's."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests import objectstores
from tests.client import driven, live

from oarlock.client import answers, downloads, elsewhere
from oarlock.data import jobfiles
from oarlock.data.transfers import places
from oarlock.spec import bodies, errors, jobs

Download = Callable[..., answers.Downloaded]


@pytest.fixture
def download(new_client: driven.NewClient) -> Download:
    """Download with each client in turn."""

    def run(*arguments: Any, **named: Any) -> answers.Downloaded:
        with new_client() as client:
            return client.download(*arguments, **named)

    return run


@pytest.fixture
def job(server: live.LiveServer) -> jobs.Job:
    made = server.submit(name="train")
    put(server, made, "ckpt.pt", b"0123456789")
    put(server, made, "logs/version_0/metrics.csv", b"1,2")
    put(server, made, b"a\xff.bin", b"odd")
    return made


def put(server: live.LiveServer, job: jobs.Job, name: str | bytes, content: bytes, task: str = "worker-0") -> Path:
    root = Path(server.rig.services.about.home, "files", job.id, task, "attempt-1")
    path = root / os.fsdecode(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def tree(root: Path) -> dict[bytes, bytes]:
    return {os.fsencode(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_the_files_of_a_job_come_as_a_tree_and_only_once(job: jobs.Job, tmp_path: Path, download: Download) -> None:
    heard: list[tuple[int, int]] = []
    to = tmp_path / "to"
    done = download("train", to=to, progress=lambda *told: heard.append(told))
    assert (done.files, done.bytes, done.present) == (3, 16, 0)
    assert tree(to) == {
        b"files/worker-0/ckpt.pt": b"0123456789",
        b"files/worker-0/logs/version_0/metrics.csv": b"1,2",
        b"files/worker-0/a\xff.bin": b"odd",
    }
    assert heard[-1] == (16, 16)
    again = download("train", to=to)
    assert (again.files, again.bytes, again.present) == (0, 0, 3)


def test_a_path_keeps_its_last_part(job: jobs.Job, tmp_path: Path, download: Download) -> None:
    download("train", "files/worker-0/logs", tmp_path / "folder")
    download("train", "files/worker-0/a%FF.bin", tmp_path / "file")
    assert list(tree(tmp_path / "folder")) == [b"logs/version_0/metrics.csv"]
    assert list(tree(tmp_path / "file")) == [b"a\xff.bin"]
    with pytest.raises(errors.NotFound, match="has no file `files/worker-7`"):
        download("train", "files/worker-7", tmp_path / "file")


def test_the_default_place_is_left_out_of_the_next_snapshot(
    job: jobs.Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, download: Download
) -> None:
    from oarlock.data.snapshots import trees

    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    (work / "train.py").touch()
    assert download("train").to == "train-files"
    assert (work / "train-files" / "files" / "worker-0" / "ckpt.pt").exists()
    packed = [entry.path for entry in trees.walk(work).entries if not entry.is_folder]
    assert packed == [b"train.py"]


def test_another_file_is_not_overwritten_unasked(job: jobs.Job, tmp_path: Path, download: Download) -> None:
    (tmp_path / "ckpt.pt").write_bytes(b"precious")
    with pytest.raises(errors.Conflict, match="is there already, and is another file"):
        download("train", "files/worker-0/ckpt.pt", tmp_path)
    assert (tmp_path / "ckpt.pt").read_bytes() == b"precious"
    download("train", "files/worker-0/ckpt.pt", tmp_path, overwrite=True)
    assert (tmp_path / "ckpt.pt").read_bytes() == b"0123456789"


def test_a_link_on_the_way_is_not_followed(job: jobs.Job, tmp_path: Path, download: Download) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "files").symlink_to(outside)
    with pytest.raises(errors.Conflict, match="is not a directory"):
        download("train", to=tmp_path / "to")
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("key", ["files/../../x", "/etc/x", "files//x", "files/%2e%2e/x", "files/a%2Fb"])
def test_a_server_cannot_lead_a_download_elsewhere(tmp_path: Path, key: str) -> None:
    evil = answers.FileList((bodies.JobFile(path=key, bytes=1, modified_at=0.0),), next=None, files=1, bytes=1)
    with pytest.raises(errors.InvalidInput):
        downloads.targets(evil, "", tmp_path, overwrite=False)


class Cut:
    """Every file is cut off once after so many bytes, as when a connection breaks."""

    def __init__(self, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.after = after
        self.asked: list[int] = []
        self._lock = threading.Lock()
        before = jobfiles.Opened.read

        async def read(file: jobfiles.Opened, offset: int, size: int) -> bytes:
            with self._lock:
                self.asked.append(offset)
                first = len(self.asked) <= 2
            if first and offset >= self.after:
                return b""  # the file ends before its length: the server closes the connection
            return await before(file, offset, self.after if first else size)

        monkeypatch.setattr(jobfiles.Opened, "read", read)


def test_a_download_that_was_cut_off_goes_on_where_it_stopped(
    job: jobs.Job, tmp_path: Path, download: Download, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = Cut(4, monkeypatch)
    done = download("train", "files/worker-0/ckpt.pt", tmp_path)
    assert (tmp_path / "ckpt.pt").read_bytes() == b"0123456789"
    assert done.bytes == 10
    assert cut.asked == [0, 4, 4], "the third connection begins where the first was cut"
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith("part")] == []


def test_a_part_of_another_version_is_not_gone_on_with(
    server: live.LiveServer, job: jobs.Job, tmp_path: Path, new_client: driven.NewClient, download: Download
) -> None:
    with new_client() as client:
        (old,) = client.files("train", "files/worker-0/ckpt.pt").items
    target = downloads.Target(old, tmp_path / "ckpt.pt")
    part = downloads.Draft(target).path
    part.write_bytes(b"0123")
    put(server, job, "ckpt.pt", b"abcdefghijkl")
    download("train", "files/worker-0/ckpt.pt", tmp_path)
    assert (tmp_path / "ckpt.pt").read_bytes() == b"abcdefghijkl"


def test_a_file_that_changes_under_way_comes_whole(
    server: live.LiveServer, job: jobs.Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, download: Download
) -> None:
    """The file changes after it was listed: a request for the rest of the old version brings the whole new one."""
    check_room = downloads.check_room

    def changed(wanted: Sequence[downloads.Target], place: Path) -> None:
        check_room(wanted, place)
        downloads.Draft(wanted[0]).path.write_bytes(b"0123")
        put(server, job, "ckpt.pt", b"ABCDEFGHIJ")

    monkeypatch.setattr(downloads, "check_room", changed)
    download("train", "files/worker-0/ckpt.pt", tmp_path)
    assert (tmp_path / "ckpt.pt").read_bytes() == b"ABCDEFGHIJ"


def test_results_of_another_place_are_read_by_the_client_itself(
    server: live.LiveServer, tmp_path: Path, download: Download
) -> None:
    place = tmp_path / "far"
    (place / "run").mkdir(parents=True)
    (place / "run" / "model.pt").write_bytes(b"weights")
    server.submit(name="far", results=str(place))
    done = download("far", to=tmp_path / "to")
    assert (done.files, done.bytes) == (1, 7)
    assert tree(tmp_path / "to") == {b"results/run/model.pt": b"weights"}
    assert download("far", "results/run", tmp_path / "to2").files == 1
    assert list(tree(tmp_path / "to2")) == [b"run/model.pt"]


def test_a_place_that_cannot_be_reached_is_said(
    server: live.LiveServer, tmp_path: Path, new_client: driven.NewClient
) -> None:
    place = tmp_path / "closed"
    server.submit(name="far", results=f"{place}/below")
    shutil.rmtree(place, ignore_errors=True)
    place.write_text("not a directory any more")
    with new_client() as client:
        (part,) = client.files("far").elsewhere
        assert (part.path, part.url) == ("results", f"{place}/below")
        with pytest.raises(errors.OarlockError):
            client.download("far", to=tmp_path / "to")


def test_a_job_that_left_nothing_says_so(server: live.LiveServer, tmp_path: Path, download: Download) -> None:
    server.submit(name="nothing")
    with pytest.raises(errors.NotFound, match="nothing has left no files"):
        download("nothing", to=tmp_path)


def test_a_place_that_does_not_answer_is_not_waited_for() -> None:
    never = threading.Event()
    with pytest.raises(errors.Unavailable, match="it did not answer within"):
        elsewhere.within(0.05, never.wait)
    never.set()
    assert elsewhere.within(20, lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        elsewhere.within(20, lambda: 1 // 0)


def test_results_in_an_object_store_come_with_the_users_own_credentials(
    server: live.LiveServer,
    bucket: objectstores.Bucket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    new_client: driven.NewClient,
    download: Download,
) -> None:
    for name, value in bucket.env.items():
        monkeypatch.setenv(name, value)
    bucket.put("out/run/model.pt", b"weights")
    bucket.put("out/run/words.txt", b"a b")
    server.submit(name="far", results=f"{bucket.url}/out")
    with new_client() as client:
        assert [one.path for one in client.files("far").items] == ["results/run/model.pt", "results/run/words.txt"]
    opened, really = [], places.filesystem
    monkeypatch.setattr(places, "filesystem", lambda url, task=None: (opened.append(url), really(url, task))[1])
    done = download("far", to=tmp_path / "to")
    assert (done.files, done.bytes) == (2, 10)
    assert tree(tmp_path / "to") == {b"results/run/model.pt": b"weights", b"results/run/words.txt": b"a b"}
    assert len(opened) == 2, "once for the list, and once for all the files"
