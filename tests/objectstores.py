"""An S3 that moto pretends: one server for each test process, and a bucket of its own for each test.

The server's first request imports for seconds, and s3fs waits 15 s for an answer. `Server.bucket` makes that request
itself, with a client that waits longer, so that no test depends on how fast the machine imports.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from typing import Any

import boto3
import werkzeug
from botocore import config
from moto import server as moto

PATIENCE_S = 300
KEYS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class Gate:
    """The way to the store. It can hold one request up, which then never gets an answer."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._wanted: tuple[str, re.Pattern[str], bool] | None = None
        self.reached, self._open = threading.Event(), threading.Event()

    def hold(self, verb: str, path: str, *, done: bool) -> None:
        """Hold up the next request of this verb whose path and query match: before it is carried out, or once it is."""
        self.reached, self._open = threading.Event(), threading.Event()
        self._wanted = (verb, re.compile(path), done)

    def release(self) -> None:
        self._open.set()

    def __call__(self, environ: dict[str, Any], start: Any) -> Any:
        path = f"{environ['PATH_INFO']}?{environ['QUERY_STRING']}"
        wanted = self._wanted
        if wanted is None or environ["REQUEST_METHOD"] != wanted[0] or not wanted[1].search(path):
            return self._inner(environ, start)
        self._wanted = None
        if wanted[2]:
            b"".join(self._inner(environ, lambda *_: None))
        self.reached.set()
        self._open.wait(PATIENCE_S)
        return werkzeug.Response("the connection is lost", 503)(environ, start)


class Server:
    """A server in a thread of this process. `env` is the environment in which a client finds it."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        self._server = moto.ThreadedMotoServer(ip_address=address, port=0, verbose=False)
        self._server.start()
        inner: Any = self._server._server
        inner.app = self.gate = Gate(inner.app)
        host, port = self._server.get_host_and_port()
        self.env: Mapping[str, str] = {**KEYS, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}
        patient = config.Config(connect_timeout=PATIENCE_S, read_timeout=PATIENCE_S, retries={"total_max_attempts": 1})
        self._client: Any = boto3.client(
            "s3",
            endpoint_url=self.env["AWS_ENDPOINT_URL"],
            region_name=KEYS["AWS_DEFAULT_REGION"],
            aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
            config=patient,
        )
        self._made = 0

    def bucket(self) -> Bucket:
        """Return a new, empty bucket."""
        self._made += 1
        name = f"bucket-{self._made}"
        self._client.create_bucket(Bucket=name)
        return Bucket(self._client, name, self.env, self.gate)

    def stop(self) -> None:
        self._client.close()
        self._server.stop()


class Bucket:
    """A bucket, by the objects in it. `url` is its address without a slash at the end."""

    def __init__(self, client: Any, name: str, env: Mapping[str, str], gate: Gate) -> None:
        self.name, self.url, self.env, self.gate = name, f"s3://{name}", env, gate
        self._client = client

    def put(self, key: str, content: bytes) -> None:
        self._client.put_object(Bucket=self.name, Key=key, Body=content)

    def get(self, key: str) -> bytes:
        content: bytes = self._client.get_object(Bucket=self.name, Key=key)["Body"].read()
        return content

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin with `prefix`."""
        found = self._client.list_objects_v2(Bucket=self.name, Prefix=prefix).get("Contents", [])
        return [each["Key"] for each in found]
