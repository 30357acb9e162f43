"""Object stores with a private authority: each library that reaches one trusts it, and the system's as well."""

from __future__ import annotations

import asyncio
import http.server
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import httpx
import pytest

from oarlock.data.checkpoints import signing, trying
from oarlock.data.transfers import authorities, mailboxes
from oarlock.spec import errors

EMPTY = (
    b'<?xml version="1.0"?><ListBucketResult><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>'
)


class Store(http.server.BaseHTTPRequestHandler):
    seen: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.seen.append(os.environ.get("SSL_CERT_FILE"))
        self.send_response(200)
        self.send_header("Content-Length", str(len(EMPTY)))
        self.end_headers()
        self.wfile.write(EMPTY)

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    do_POST = do_PUT

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """Return the URL of a store, and the PEM of its authority, which this machine does not trust."""
    for name in authorities.VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    certificate, key = tmp_path / "certificate", tmp_path / "key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Store) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"https://127.0.0.1:{server.server_port}", certificate.read_text()
        server.shutdown()
        thread.join()


async def test_the_server_and_its_signed_urls_reach_a_store_of_a_private_authority(
    store: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, pem = store
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")

    async def listed() -> list[signing.StoredObject]:
        objects = signing.SignedObjects("s3://bucket")
        try:
            return await objects.listed("job")
        finally:
            objects.close()

    with pytest.raises(errors.Unavailable, match="SSL"):
        await listed()
    with pytest.raises(httpx.ConnectError):
        await asyncio.to_thread(httpx.get, url)
    added = authorities.trust(pem, tmp_path / "bundle", os.environ)
    assert added == list(authorities.VARIABLES)
    assert await listed() == []
    assert (await asyncio.to_thread(httpx.get, url)).status_code == 200
    known = ssl.create_default_context(cafile=str(tmp_path / "bundle")).cert_store_stats()["x509_ca"]
    assert known > 20, "the authorities of the system stay"


async def test_doctor_tells_the_authorities_to_the_clients_of_the_store_alone(
    store: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that makes a token for the cluster meanwhile would have trusted them, too."""
    url, pem = store
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setattr(Store, "seen", [])
    said, _ = await trying.finding("s3://bucket")
    assert said == "s3://bucket cannot keep checkpoints: an object cannot be written: " + (
        "ConnectError: the store's address does not answer"
    )
    said, _ = await trying.finding("s3://bucket", pem)
    assert said == "s3://bucket cannot keep checkpoints: an object that was written is not listed"
    assert len(Store.seen) >= 2
    assert set(Store.seen) == {None}


def test_the_helper_trusts_the_authorities_of_its_task(
    store: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / authorities.FILE).write_text(store[1])
    (tmp_path / mailboxes.AGENT_STARTED).touch()
    seen: list[int] = []

    def look(_: Path) -> bool:
        seen.append(httpx.get(store[0]).status_code)
        return False

    monkeypatch.setattr(mailboxes, "agent_lives", look)
    monkeypatch.setattr(mailboxes.signal, "signal", lambda *_: None)
    mailboxes.run(str(tmp_path / "mailbox"), str(tmp_path))
    assert seen == [200]


def test_a_variable_of_the_installation_stays_as_it_is(tmp_path: Path) -> None:
    environ = {"AWS_CA_BUNDLE": "/own.pem"}
    assert "AWS_CA_BUNDLE" not in authorities.trust("pem", tmp_path / "bundle", environ)
    assert environ["AWS_CA_BUNDLE"] == "/own.pem"
    assert environ["SSL_CERT_FILE"] == str(tmp_path / "bundle")
