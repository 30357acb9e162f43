"""The attempt to use the installation's place for checkpoints says plainly what is wrong, and leaves nothing behind."""

from __future__ import annotations

import contextlib

import pytest
from tests import objectstores

from oarlock.data.checkpoints import signing, trying


@pytest.fixture
def store(bucket: objectstores.Bucket, monkeypatch: pytest.MonkeyPatch) -> objectstores.Bucket:
    for name, value in bucket.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(trying, "BOUND_S", objectstores.PATIENCE_S)
    return bucket


async def attempt(url: str) -> str:
    with contextlib.closing(signing.SignedObjects(url)) as place:
        return await trying.attempt(place)


async def test_a_good_place_takes_an_object_and_keeps_nothing_of_it(store: objectstores.Bucket) -> None:
    store.put("kept/job/other", b"of a job")
    assert await attempt(f"{store.url}/kept") == ""
    assert store.keys("") == ["kept/job/other"]


async def test_a_bucket_that_does_not_exist_is_named(store: objectstores.Bucket) -> None:
    assert await attempt("s3://no-such-bucket") == "an object cannot be written: status 404, NoSuchBucket"


@pytest.mark.parametrize(
    ("verb", "path", "said"),
    [
        ("PUT", "doctor-", "an object cannot be written: status 503"),
        ("GET", "doctor-.*X-Amz-Signature", "an object cannot be read: status 503"),
    ],
)
async def test_the_request_that_the_store_refuses_is_named(
    store: objectstores.Bucket, verb: str, path: str, said: str
) -> None:
    store.gate.hold(verb, path, done=False)
    store.gate.release()
    assert await attempt(f"{store.url}/kept") == said
    assert store.keys("") == []


async def test_a_store_that_does_not_answer(store: objectstores.Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    said = await attempt(store.url)
    assert said == "an object cannot be written: ConnectError: the store's address does not answer"


async def test_credentials_that_are_missing(store: objectstores.Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    assert await attempt(store.url) == f"{store.url}: Unable to locate credentials"


async def test_a_url_that_names_no_bucket_is_told_as_a_finding() -> None:
    said, fix = await trying.finding("gs://elsewhere")
    assert said.startswith("gs://elsewhere cannot keep checkpoints: ")
    assert "s3://BUCKET" in fix
