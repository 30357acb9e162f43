"""The installation's own place for checkpoints in an object store, which speaks S3.

The server alone has the credentials. It lists and removes objects itself, and signs a URL for each object that a task
may read or write: the bytes go between task and store, past the server. A URL is good for one object and one way, and
for a short time. Keys are JOB/CHECKPOINT/FILE, below the prefix of the place; callers check which of them a task may
use. Calls wait for the network in threads that nothing else uses: a store that does not answer holds up no other work.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from oarlock.spec import errors
from oarlock.spec.hints import extras

EXPIRES_S = 900
"""The time in which a request has to begin. A transfer may take longer."""
REMOVED_AT_ONCE = 1000
THREADS = 8
READ_TIMEOUT_S = 20
CREDENTIALS = (
    "Check the bucket, and the rights of the credentials of the server's environment: AWS_ACCESS_KEY_ID, "
    "AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL, AWS_DEFAULT_REGION (docs/kubernetes.md)."
)
READ, WRITE, PART = "get_object", "put_object", "upload_part"

T = TypeVar("T")


class StoredObject(msgspec.Struct, frozen=True):
    """An object. `version` changes when the content changes. `modified_at` is in Unix seconds."""

    key: str
    bytes: int
    version: str
    modified_at: float = 0.0


def check(url: str) -> None:
    """Refuse a URL that does not name a bucket. Raises InvalidInput."""
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc:
        raise errors.InvalidInput(
            f"{url!r} does not name a place in an object store that speaks S3.",
            path="kubernetes.checkpoint_url",
            hint="Write s3://BUCKET or s3://BUCKET/PREFIX. Credentials and endpoint come from the server's "
            "environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL), or from a role.",
        )


class SignedObjects:
    """The objects below one URL, `s3://BUCKET/PREFIX`. Threads may share it.

    `authorities` is a file with those that the store's certificate may have, where AWS_CA_BUNDLE names none.
    """

    def __init__(self, url: str, authorities: Path | None = None) -> None:
        check(url)
        parts = urlsplit(url)
        self._url, self._bucket = url, parts.netloc
        self._prefix = f"{parts.path.strip('/')}/" if parts.path.strip("/") else ""
        self._client = _client(authorities)
        self._threads = futures.ThreadPoolExecutor(THREADS, thread_name_prefix="oarlock-objects")

    async def listed(self, path: str) -> list[StoredObject]:
        """Return the object of this key, or the objects below it."""

        def look() -> list[StoredObject]:
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix + path
            )
            found = [
                StoredObject(
                    one["Key"].removeprefix(self._prefix),
                    one["Size"],
                    one.get("ETag", ""),
                    one["LastModified"].timestamp(),
                )
                for page in pages
                for one in page.get("Contents", [])
            ]
            return [one for one in found if one.key == path or one.key.startswith(f"{path}/")]

        return await self._asked(look)

    async def read(self, one: StoredObject, offset: int, size: int) -> bytes:
        """Return a part of the object. Raises Conflict where it has changed since it was listed, or is gone."""
        wanted = {"Bucket": self._bucket, "Key": self._prefix + one.key, "IfMatch": one.version}
        part = f"bytes={offset}-{offset + size - 1}"
        return await self._asked(lambda: bytes(self._client.get_object(**wanted, Range=part)["Body"].read()))

    async def url(self, key: str, way: str, **more: object) -> str:
        """Return a URL by which anyone may carry out this request for this object. `way`: READ, WRITE or PART."""
        wanted = {"Bucket": self._bucket, "Key": self._prefix + key, **more}
        return await self._asked(
            lambda: str(self._client.generate_presigned_url(way, Params=wanted, ExpiresIn=EXPIRES_S))
        )

    async def begin(self, key: str) -> str:
        """Begin an upload in parts; return its id."""
        return await self._asked(
            lambda: str(self._client.create_multipart_upload(Bucket=self._bucket, Key=self._prefix + key)["UploadId"])
        )

    async def end(self, key: str, upload: str, parts: Sequence[str]) -> None:
        """Make the object of its parts, by their ETags. Raises Conflict where a part or the upload is unknown."""
        listed = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(parts, 1)]
        await self._asked(
            lambda: self._client.complete_multipart_upload(
                Bucket=self._bucket, Key=self._prefix + key, UploadId=upload, MultipartUpload={"Parts": listed}
            )
        )

    async def remove(self, keys: Sequence[str]) -> None:
        """Remove the objects. An absent one does not count as a failure."""

        def work() -> None:
            for start in range(0, len(keys), REMOVED_AT_ONCE):
                objects = [{"Key": self._prefix + key} for key in keys[start : start + REMOVED_AT_ONCE]]
                answer = self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": objects, "Quiet": True})
                for one in answer.get("Errors", []):
                    raise errors.Conflict(
                        f"{one.get('Key')} cannot be removed from {self._url}: {one.get('Code')}", hint=_RIGHTS
                    )

        await self._asked(work)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    async def _asked(self, work: Callable[[], T]) -> T:
        def guarded() -> T:
            with _foreign(self._url):
                return work()

        return await asyncio.get_running_loop().run_in_executor(self._threads, guarded)


_RIGHTS = "An administrator checks the rights of the server's credentials (docs/kubernetes.md)."


def _client(authorities: Path | None) -> Any:
    try:
        from botocore import config, session
    except ImportError as error:
        raise errors.InvalidInput(
            f"The place of the checkpoints needs a library that is not installed ({error}).",
            path="kubernetes.checkpoint_url",
            hint=f"On the server's machine: {extras.command('s3')}",
        ) from error
    settings = config.Config(
        signature_version="s3v4",
        # A signed URL would demand a checksum that the task cannot know before it sends the object.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        connect_timeout=10,
        read_timeout=READ_TIMEOUT_S,
        retries={"total_max_attempts": 2},  # agents ask again
    )
    verify = None if authorities is None or os.environ.get("AWS_CA_BUNDLE") else str(authorities)
    return session.get_session().create_client("s3", config=settings, verify=verify)


@contextlib.contextmanager
def _foreign(url: str) -> Iterator[None]:
    """Turn the library's errors into Oarlock's: Conflict where the same request will fail again."""
    from botocore import exceptions

    try:
        yield
    except exceptions.ClientError as error:
        said, status = error.response.get("Error", {}), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        words = f"{url}: {said.get('Code', 'Error')}: {said.get('Message', '')}"
        if isinstance(status, int) and 400 <= status < 500 and status != 429:
            raise errors.Conflict(words, hint=_RIGHTS) from error
        raise errors.Unavailable(words, hint="It is tried again.") from error
    except (exceptions.NoCredentialsError, exceptions.ParamValidationError, exceptions.NoRegionError) as error:
        raise errors.Conflict(f"{url}: {error}", hint=_RIGHTS) from error
    except exceptions.BotoCoreError as error:
        raise errors.Unavailable(f"{url}: {error}", hint="It is tried again.") from error
