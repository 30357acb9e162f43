"""A task sends its files to the server: again while the server is away, and never again after a refusal."""

from __future__ import annotations

import http.server
import json
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from oarlock.data.transfers import serverplaces
from oarlock.spec import errors


class Server(http.server.ThreadingHTTPServer):
    """Answers each request with the next status. It reads no body after a refusal."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.statuses = [200]
        self.stored: list[bytes] = []

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that break off."""


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_PUT(self) -> None:
        status = self.server.statuses.pop(0)
        if status == 200:
            self.server.stored.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"no")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as one:
        thread = threading.Thread(target=one.serve_forever)
        thread.start()
        yield one
        one.shutdown()
        thread.join()


def place(task: Path, url: str, pauses: list[float]) -> serverplaces.ServerPlace:
    (task / "assignment.json").write_text(json.dumps({"key": "j-1/1/worker/0/0", "server": url, "token": "t"}))

    def sleep(pause_s: float) -> None:
        pauses.append(pause_s)
        assert len(pauses) < 5, "it is sent again and again"

    return serverplaces.ServerPlace("oarlock:results/j-1", str(task), sleep)


def test_a_file_is_sent_again_while_the_server_is_away(server: Server, tmp_path: Path) -> None:
    (tmp_path / "score").write_bytes(b"0.9")
    server.statuses = [503, 200]
    pauses: list[float] = []
    place(tmp_path, f"http://127.0.0.1:{server.server_port}", pauses).send(os.fsencode(tmp_path / "score"), "score")
    assert (server.stored, len(pauses)) == ([b"0.9"], 1)


@pytest.mark.parametrize("status", [409, 410, 413, 422])
def test_a_refusal_is_final(server: Server, tmp_path: Path, status: int) -> None:
    (tmp_path / "score").write_bytes(b"0.9")
    server.statuses = [status]
    sender = place(tmp_path, f"http://127.0.0.1:{server.server_port}", [])
    with pytest.raises(errors.Unavailable, match=f"does not take .*: {status} no"):
        sender.send(os.fsencode(tmp_path / "score"), "score")


def test_a_certificate_that_is_not_valid_is_final(server: Server, tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate", tmp_path / "key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    sender = place(tmp_path, f"https://127.0.0.1:{server.server_port}", [])
    with pytest.raises(errors.Unavailable, match="certificate is not valid"):
        sender.send(os.fsencode(certificate), "score")
