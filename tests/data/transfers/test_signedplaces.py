"""A task's helper stores, reads and removes checkpoints by URLs that the server signs. Here is no server."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from tests import objectstores

from oarlock.data import __main__ as helper
from oarlock.data.checkpoints import signing
from oarlock.data.transfers import patience, serverplaces, signedplaces
from oarlock.spec import errors

NAME = "attempt-1-round-1-step-10"
URL = f"oarlock:checkpoints/job/{NAME}"


class Server:
    """Answers as the server does, without a look at the task. `asked` has the signed requests."""

    def __init__(self, objects: signing.SignedObjects) -> None:
        self._objects = objects
        self.asked: list[dict[str, Any]] = []

    def __call__(self, _url: str, _task: str | None, _sleep: object) -> Server:
        return self

    def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        return msgspec.json.encode(asyncio.run(self._answer(urlsplit(path), json.loads(body or b"{}"))))

    async def _answer(self, asked: Any, told: dict[str, Any]) -> dict[str, Any]:
        route = asked.path.removeprefix("/checkpoints/objects")
        if route == "":
            return {"objects": await self._objects.listed(parse_qs(asked.query)["path"][0])}
        if route == "/url":
            self.asked.append(told)
            way = {"read": signing.READ, "write": signing.WRITE, "part": signing.PART}[told["use"]]
            more = {"UploadId": told["upload"], "PartNumber": told["part"]} if told["use"] == "part" else {}
            return {"url": await self._objects.url(told["key"], way, **more)}
        if route == "/uploads":
            return {"upload": await self._objects.begin(told["key"])}
        if route == "/uploads/end":
            await self._objects.end(told["key"], told["upload"], told["etags"])
        else:
            await self._objects.remove(told["keys"])
        return {}


@pytest.fixture
def server(bucket: objectstores.Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with monkeypatch.context() as credentials:
        for name, value in bucket.env.items():
            credentials.setenv(name, value)
        objects = signing.SignedObjects(f"{bucket.url}/kept")
    made = Server(objects)
    monkeypatch.setattr(serverplaces, "ServerPlace", made)
    monkeypatch.setattr(patience, "PAUSE_FIRST_S", 0.0)
    yield made
    objects.close()


def run(*arguments: str) -> int:
    return helper.main(["--task", "/nowhere", *arguments])


def save(folder: Path, step: int = 10) -> Path:
    place = folder / f"attempt-1-round-1-step-{step}"
    place.mkdir()
    (place / "rank-0.pt").write_bytes(b"weights" * step)
    digest = hashlib.sha256(b"weights" * step).hexdigest()
    shards = [{"file": "rank-0.pt", "bytes": 7 * step, "sha256": digest}]
    manifest = {"format": 1, "step": step, "attempt": 1, "round": 1, "world_size": 1, "time": 0.0, "shards": shards}
    (place / "manifest.json").write_text(json.dumps(manifest))
    return place


def test_there_and_back(server: Server, bucket: objectstores.Bucket, tmp_path: Path) -> None:
    """The commands of the helper: complete, prune, fetch. The helper itself has no credentials."""
    for step in (10, 20, 30):
        place = save(tmp_path, step)
        assert run("complete", str(place), f"oarlock:checkpoints/job/{place.name}") == 0
    assert run("prune", "oarlock:checkpoints/job", "--keep", "2") == 0
    names = {key.split("/")[2] for key in bucket.keys("kept/job/")}
    assert names == {"attempt-1-round-1-step-20", "attempt-1-round-1-step-30"}
    assert run("fetch", "oarlock:checkpoints/job/attempt-1-round-1-step-20", str(tmp_path / "back")) == 0
    assert (tmp_path / "back" / "rank-0.pt").read_bytes() == b"weights" * 20
    assert (tmp_path / "back" / "manifest.json").exists()


def test_a_large_file_goes_in_parts(
    server: Server, bucket: objectstores.Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signedplaces, "PART_BYTES", 5 << 20)  # the least that S3 takes
    content = bytes(range(256)) * (41 << 10)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "rank-0.pt").write_bytes(content)
    assert run("store", str(tmp_path / "here"), URL) == 0
    assert bucket.get(f"kept/job/{NAME}/rank-0.pt") == content
    assert [told.get("part") for told in server.asked] == [1, 2, 3]


def test_a_request_that_is_lost_is_sent_again_with_another_url(
    server: Server, bucket: objectstores.Bucket, tmp_path: Path
) -> None:
    bucket.gate.hold("PUT", r"/rank-0\.pt", done=False)
    bucket.gate.release()
    assert run("store", str(save(tmp_path)), URL) == 0
    assert [told["key"].rpartition("/")[2] for told in server.asked] == ["rank-0.pt", "rank-0.pt", "manifest.json"]
    assert bucket.get(f"kept/job/{NAME}/rank-0.pt") == b"weights" * 10


def test_no_message_names_a_signed_url(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async def elsewhere(*_: object, **__: object) -> str:
        return "http://127.0.0.1:9/bucket/key?X-Amz-Signature=abc"

    monkeypatch.setattr(signing.SignedObjects, "url", elsewhere)
    monkeypatch.setattr(patience, "PATIENCE_S", 0.0)
    assert run("store", str(save(tmp_path)), URL) == 1
    said = "".join(capfd.readouterr())
    assert "does not take PUT job/" in said
    assert "Signature" not in said


def test_an_absent_checkpoint_is_not_found(server: Server, tmp_path: Path) -> None:
    assert run("fetch", URL, str(tmp_path / "back")) == 1
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("url", ["gs://bucket", "s3://", "/kept", "s3://key:secret@bucket", "s3://bucket/a?b=c"])
def test_a_place_is_a_bucket_that_speaks_s3(url: str) -> None:
    with pytest.raises(errors.InvalidInput) as raised:
        signing.check(url)
    assert raised.value.path == "kubernetes.checkpoint_url"
