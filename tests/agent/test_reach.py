"""`agent.pyz --reach URL` tells a server of ours from everything else that may be at an address."""

from __future__ import annotations

import contextlib
import http.server
import os
import ssl
import subprocess
import sys
import threading

import pytest
from tests.backends.kubernetes.testcluster import apiserver, rights

CODE = "import sys; from oarlock.agent import __main__; sys.exit(__main__.main(sys.argv))"


def reach(url, **env):
    argv = [sys.executable, "-c", CODE, "--reach", url, "0"]
    return subprocess.run(argv, env={**os.environ, **env}, capture_output=True, text=True, check=False)


@contextlib.contextmanager
def answering(status, body, certificate=None):
    """An HTTP server that answers every request so; yield its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate / "server.pem", certificate / "key.pem")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


REFUSAL = b'{"error": {"code": "unauthenticated", "message": "The server does not know this token."}}'


def test_the_refusal_of_a_server_is_an_answer():
    with answering(401, REFUSAL) as port:
        ran = reach(f"http://127.0.0.1:{port}")
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize(("status", "body"), [(200, b"<html>"), (401, b"<html>"), (502, REFUSAL)])
def test_another_program_at_the_address_is_told_from_the_server(status, body):
    with answering(status, body) as port:
        ran = reach(f"http://127.0.0.1:{port}")
    assert ran.returncode == 1
    assert f"the answer has the status {status} and is not that of an Oarlock server" in ran.stderr


def test_a_closed_port_is_named():
    (port,) = apiserver.free_ports(1)
    ran = reach(f"http://127.0.0.1:{port}")
    assert ran.returncode == 1
    assert "ConnectionRefusedError" in ran.stderr


def test_the_certificate_of_the_installation_is_trusted_where_it_is_given(tmp_path):
    """The certificate is the one that `deploy/` makes: it names the address of the Service."""
    certify(tmp_path, "https://127.0.0.1", "localhost", "oarlock.oarlock.svc")
    with answering(401, REFUSAL, tmp_path) as port:
        trusting = reach(f"https://127.0.0.1:{port}", OARLOCK_CA=(tmp_path / "server.pem").read_text())
        strange = reach(f"https://127.0.0.1:{port}")
    assert (trusting.returncode, trusting.stderr) == (0, "")
    assert strange.returncode == 1
    assert "CERTIFICATE_VERIFY_FAILED" in strange.stderr


def test_the_certificate_of_the_installation_is_made_again_for_other_names_alone(tmp_path):
    certify(tmp_path, "https://10.0.0.1", "localhost")
    first = (tmp_path / "server.pem").read_text()
    certify(tmp_path, "https://10.0.0.1", "localhost")
    assert (tmp_path / "server.pem").read_text() == first
    certify(tmp_path, "https://10.0.0.2:8443", "localhost")
    assert (tmp_path / "server.pem").read_text() != first
    assert (tmp_path / "names").read_text() == "IP:10.0.0.2,DNS:localhost"
    assert (tmp_path / "key.pem").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://fd00::1f", "IP:fd00::1f"),
        ("https://[fd00::1f]:8443/x", "IP:fd00::1f"),
        ("https://oarlock.example:8443", "DNS:oarlock.example"),
    ],
)
def test_the_certificate_names_the_host_of_the_url(tmp_path, url, name):
    """Kubernetes tells the IPv6 address of a Service without brackets."""
    certify(tmp_path, url)
    assert (tmp_path / "names").read_text() == name


def certify(folder, *names):
    script = str(rights.DEPLOY / "base" / "certificate.sh")
    subprocess.run(["sh", script, str(folder), *names], check=True, capture_output=True)
