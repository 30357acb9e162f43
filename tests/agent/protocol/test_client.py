"""The small HTTP client against answers that servers and proxies really give, and those that broken ones do."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import threading
import types

import pytest

from oarlock.agent import assignment
from oarlock.agent.protocol import client


@pytest.fixture
def asked(tmp_path):
    made = []

    def ask(url: str, **fields: object) -> client.Client:
        task = assignment.Assignment(str(tmp_path), {"key": "j/1/w/0/1", "command": "true", "server": url, **fields})
        made.append(client.Client(task, lambda: None))
        return made[-1]

    yield ask
    for one in made:
        one.close()


@pytest.fixture
def talk():
    """Serve the given raw answers, one for each request; None closes the connection before the next one."""
    listener = socket.create_server(("127.0.0.1", 0))
    heads: list[bytes] = []

    def serve(answers: list[bytes | None]) -> str:
        def run() -> None:
            connection = None
            for answer in answers:
                if connection is None:
                    connection, _ = listener.accept()
                if answer is None:
                    connection.close()
                    connection = None
                    continue
                head = b""
                while b"\r\n\r\n" not in head:
                    part = connection.recv(65536)
                    if not part:
                        connection.close()
                        return
                    head += part
                heads.append(head)
                connection.sendall(answer)
            if connection is not None:
                connection.close()

        threading.Thread(target=run, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    serve.heads = heads
    yield serve
    listener.close()


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n" + b'{"a": 1}'

ANSWERS = {
    "with a length": OK,
    "in chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'3;x=y\r\n{"a\r\n5\r\n": 1}\r\n0\r\nT: 1\r\n\r\n',
    "until it closes": b'HTTP/1.1 200 OK\r\n\r\n{"a": 1}',
    "after a continue": b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
    "in odd letters": b'HTTP/1.1 200\r\ncontent-LENGTH:8\r\nX: \r\n\r\n{"a": 1}',
}


@pytest.mark.parametrize("form", ANSWERS)
def test_an_answer_in_any_form(asked, talk, form):
    answer = asked(talk([ANSWERS[form], None])).ask("GET", "/x")
    assert (answer.status, answer.json()) == (200, {"a": 1})


BROKEN = {
    "cut in the body": OK[:-2],
    "cut in the head": OK[:20],
    "not HTTP": b"SSH-2.0-x\r\n\r\n",
    "no number": b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
    "a negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
    "two lengths in one": b"HTTP/1.1 200 OK\r\nContent-Length: 8:8\r\n\r\n" + b'{"a": 1}',
    "a chunk that is none": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a server error": b"HTTP/1.1 503 busy\r\nContent-Length: 0\r\n\r\n",
    "too many requests": b"HTTP/1.1 429 busy\r\nContent-Length: 0\r\n\r\n",
    "nothing": b"",
    "a moved page": b"HTTP/1.1 502 x\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("form", BROKEN)
def test_a_broken_answer_is_asked_for_again(asked, talk, form):
    answer = asked(talk([BROKEN[form], None, OK])).ask("POST", "/x", {"b": 2})
    assert (answer.status, answer.json()) == (200, {"a": 1})
    assert [head.split(b"\r\n")[0] for head in talk.heads] == [b"POST /agent/v1/x HTTP/1.1"] * 2


def test_an_idle_connection_that_was_closed_is_replaced_at_once(asked, talk, monkeypatch):
    monkeypatch.setattr(client, "FIRST_PAUSE_S", 1e9)  # a real retry would hang
    one = asked(talk([OK, None, OK]))
    assert one.ask("GET", "/x").ok
    assert one.ask("GET", "/x").ok


def test_a_connection_that_closes_under_the_request_is_replaced_at_once(asked, talk, monkeypatch):
    """The server's idle timeout and our request crossed: nothing was answered, so nothing is in doubt."""
    monkeypatch.setattr(client, "FIRST_PAUSE_S", 1e9)
    one = asked(talk([OK, b"", None, OK]))
    assert one.ask("GET", "/x").ok
    assert one.ask("POST", "/y", {"b": 2}).ok
    assert [head.split(b"\r\n")[0] for head in talk.heads[1:]] == [b"POST /agent/v1/y HTTP/1.1"] * 2
    assert talk.heads[2].endswith(b'{"b": 2}')


def test_one_connection_carries_many_requests(asked, talk):
    one = asked(talk([OK] * 5))
    assert all(one.ask("GET", "/x").ok for _ in range(5))


def test_the_server_file_wins_and_is_read_again(tmp_path, talk, asked):
    place = tmp_path / "server.json"
    place.write_text("half-writ")
    url = talk([OK, None, OK])
    one = asked(url, server_file=str(place))
    assert one.ask("GET", "/x").ok
    place.write_text(json.dumps({"url": url + "/base/"}))
    assert one.ask("GET", "/x").ok
    assert [head.split()[1] for head in talk.heads] == [b"/agent/v1/x", b"/base/agent/v1/x"]


def test_nan_becomes_null(asked, talk):
    body = {"loss": float("nan"), "l": [float("inf"), 1.5], "name": "ab", "epoch": None, "step": 3}
    assert asked(talk([OK])).ask("POST", "/x", body).ok
    assert talk.heads[0].endswith(b'{"loss": null, "l": [null, 1.5], "name": "ab", "epoch": null, "step": 3}')


@pytest.fixture
def given(tmp_path, monkeypatch):
    """A connection to a server that sends these pieces and then closes, without a socket."""

    class Pieces:
        def __init__(self, pieces: list[bytes]) -> None:
            self.pieces = pieces

        def recv(self, most: int) -> bytes:
            return self.pieces.pop(0) if self.pieces else b""

        def sendall(self, data: bytes) -> None: ...

        def setsockopt(self, *asked: int) -> None: ...

        def settimeout(self, timeout_s: float) -> None: ...

        def close(self) -> None: ...

    def connect(*pieces: bytes) -> client.Connection:
        monkeypatch.setattr(socket, "create_connection", lambda *asked, **more: Pieces(list(pieces)))
        fields = {"key": "j/1/w/0/1", "command": "true", "server": "http://h"}
        return client.Connection(assignment.Assignment(str(tmp_path), fields))

    return connect


LIMITS = {  # pieces of an answer, with a head of at most 40 and a body of at most 8 bytes -> the fault, or none
    "a head of the limit, then its end": ((b"HTTP/1.1 200 OK\r\nX: ".ljust(40, b"x"), b"\r\n\r\n"), None),
    "a head above the limit": (
        (b"HTTP/1.1 200 OK\r\nX: ".ljust(41, b"x"), b"\r\n\r\n"),
        "the answer's head is too long",
    ),
    "a line of the limit": (
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0;".ljust(40, b"x"), b"\r\n\r\n"),
        None,
    ),
    "a line above the limit": (
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0;".ljust(41, b"x"), b"\r\n\r\n"),
        "a line of the answer is too long",
    ),
    "a body of the limit": ((b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n12345678",), None),
    "a body above the limit": (
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n123456789",),
        "the answer is too long",
    ),
    "an end within the head": ((b"HTTP/1.1 200 OK\r\n",), "the server closed the connection"),
    "another protocol": ((b"SSH-2.0-x\r\n\r\n",), "not an HTTP answer"),
}


@pytest.mark.parametrize("case", LIMITS)
def test_the_limits_of_an_answer_and_the_words_beyond_them(given, monkeypatch, case):
    """A pod that tries the server prints these words."""
    monkeypatch.setattr(client, "HEAD_LIMIT_BYTES", 40)
    monkeypatch.setattr(client, "ANSWER_LIMIT_BYTES", 8)
    pieces, fault = LIMITS[case]
    one = given(*pieces)
    if fault is None:
        assert one.exchange("GET", "/x", None, 0.0, None).status == 200
        return
    with pytest.raises(client.Broken) as caught:
        one.exchange("GET", "/x", None, 0.0, None)
    assert str(caught.value) == fault


def test_a_body_for_a_sink_may_be_longer(given, monkeypatch):
    monkeypatch.setattr(client, "ANSWER_LIMIT_BYTES", 8)
    kept: list[bytes] = []
    one = given(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n1234", b"56789")
    assert one.exchange("GET", "/x", None, 0.0, lambda part: kept.append(part)).body == b""
    assert b"".join(kept) == b"123456789"


@pytest.mark.parametrize(("byte", "part"), [(b"\0", 0.75), (b"\x80", 1.0)])
def test_the_pauses_grow_to_a_limit_and_differ_by_chance(asked, monkeypatch, byte, part):
    """The agents of a large job must not all come back at the same moment."""
    pauses: list[float] = []
    answers = [client.Answer(503, b"")] * 8 + [client.Answer(200, b"")]
    one = asked("http://h")
    monkeypatch.setattr(one, "_once", lambda *request: answers.pop(0))
    monkeypatch.setattr(client, "os", types.SimpleNamespace(urandom=lambda count: byte * count))
    monkeypatch.setattr(client, "time", types.SimpleNamespace(sleep=pauses.append))
    assert one.ask("GET", "/x").ok
    assert pauses == pytest.approx([part * pause_s for pause_s in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0)])


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h", (False, "h", 80, "")),
        ("https://h.example/oar/", (True, "h.example", 443, "/oar")),
        ("http://[::1]:8080", (False, "[::1]", 8080, "")),
        ("https://[fe80::1]/x", (True, "[fe80::1]", 443, "/x")),
    ],
)
def test_urls(url, expected):
    assert client.split_url(url) == expected


@pytest.fixture
def certificate(tmp_path):
    key, pem = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(pem)],
        capture_output=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    return pem, key


def test_tls_is_verified_against_the_given_ca_and_name(asked, certificate):
    pem, key = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key)
    listener = socket.create_server(("127.0.0.1", 0))
    tries = []

    def serve() -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            try:
                with context.wrap_socket(plain, server_side=True) as secure:
                    tries.append("welcome")
                    while secure.recv(65536):
                        secure.sendall(OK)
            except OSError:
                tries.append("refused")

    threading.Thread(target=serve, daemon=True).start()
    port = listener.getsockname()[1]
    trusting = asked(f"https://localhost:{port}", ca_file=str(pem))
    assert trusting.ask("GET", "/x").ok
    assert trusting.ask("GET", "/x").ok
    assert tries == ["welcome"], "the second request used the same connection"
    trusting.close()
    for url, ca_file in ((f"https://localhost:{port}", None), (f"https://127.0.0.1:{port}", str(pem))):
        with pytest.raises(client.Abandoned):
            asked(url, ca_file=ca_file).ask("GET", "/x", abandon=lambda: tries.count("refused") > 0)
        tries.clear()
    listener.close()
