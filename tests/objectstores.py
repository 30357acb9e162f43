"""An S3 that moto pretends: one server for each test process, and a bucket of its own for each test.

The server's first request imports for seconds, and s3fs waits 15 s for an answer. `Server.bucket` makes that request
itself, with a client that waits longer, so that no test depends on how fast the machine imports.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import boto3
from botocore import config
from moto import server as moto

PATIENCE_S = 300
KEYS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class Server:
    """A server in a thread of this process. `env` is the environment in which a client finds it."""

    def __init__(self) -> None:
        self._server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
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
        return Bucket(self._client, name, self.env)

    def stop(self) -> None:
        self._client.close()
        self._server.stop()


class Bucket:
    """A bucket, by the objects in it. `url` is its address without a slash at the end."""

    def __init__(self, client: Any, name: str, env: Mapping[str, str]) -> None:
        self.name, self.url, self.env = name, f"s3://{name}", env
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
