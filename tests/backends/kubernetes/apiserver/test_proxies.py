"""The proxy on the way to the API server is the one of `kubectl`, and requests pass through it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.agent import test_reach
from tests.backends.kubernetes.apiserver.test_credentials import found, written

from oarlock.backends.kubernetes.apiserver import client, credentials, proxies
from oarlock.backends.kubernetes.pods import commands
from oarlock.spec import errors

PROXY = "http://proxy:3128"
SERVER = "https://kube.example.com:6443"
ADDRESS = "https://10.0.0.1:6443"

# As golang.org/x/net/http/httpproxy decides: the server, NO_PROXY, and whether the proxy is used.
LISTED = [
    (SERVER, "", True),
    (SERVER, "*", False),
    (SERVER, "other.example.com,example.com", False),
    (SERVER, "example.com", False),
    (SERVER, ".example.com", False),
    (SERVER, "*.example.com", False),
    (SERVER, " Kube.Example.COM ", False),
    (SERVER, "xample.com", True),
    (SERVER, ".kube.example.com", True),
    (SERVER, "kube.example.com:6443", False),
    (SERVER, "kube.example.com:443", True),
    ("https://kube.example.com", "kube.example.com:443", False),
    (SERVER, "10.0.0.0/8", True),
    (ADDRESS, "10.0.0.0/8", False),
    (ADDRESS, "10.0.0.7/8", False),
    (ADDRESS, "10.0.1.0/24", True),
    (ADDRESS, "10.0.0.1", False),
    (ADDRESS, "10.0.0.1:6443", False),
    (ADDRESS, "10.0.0.1:443", True),
    (ADDRESS, "10.0.0.0/99,,:,/", True),
    ("https://[fd00::1]:6443", "fd00::/8", False),
    ("https://[fd00::1]:6443", "[fd00::1]:6443", False),
    ("https://[fd00::1]:6443", "fd00:0::1", False),
    ("https://[fd00::1]:6443", "[fd00::1]:443,fd00::2", True),
    ("https://localhost:6443", "", False),
    ("https://127.8.0.1:6443", "", False),
    ("https://[::1]:6443", "", False),
    ("https://localhost.example.com", "", True),
]


@pytest.mark.parametrize(("server", "listed", "used"), LISTED)
def test_hosts_that_are_asked_without_the_proxy(server: str, listed: str, used: bool) -> None:
    assert proxies.of(server, {"HTTPS_PROXY": PROXY, "NO_PROXY": listed}) == (PROXY if used else None)


@pytest.mark.parametrize(
    ("server", "environ", "proxy"),
    [
        (SERVER, {}, None),
        (SERVER, {"https_proxy": PROXY}, PROXY),
        (SERVER, {"HTTPS_PROXY": PROXY, "https_proxy": "http://other"}, PROXY),
        (SERVER, {"HTTPS_PROXY": "", "https_proxy": PROXY}, PROXY),
        (SERVER, {"https_proxy": PROXY, "no_proxy": "example.com"}, None),
        (SERVER, {"HTTP_PROXY": PROXY, "ALL_PROXY": PROXY}, None),
        ("http://kube.example.com", {"HTTP_PROXY": PROXY}, PROXY),
        ("http://kube.example.com", {"HTTPS_PROXY": PROXY}, None),
        (SERVER, {"HTTPS_PROXY": "proxy:3128"}, PROXY),
        ("https://kube.example.com:x", {"HTTPS_PROXY": PROXY}, PROXY),
        ("https://[", {"HTTPS_PROXY": PROXY}, None),
    ],
)
def test_the_variables_of_the_proxy(server: str, environ: dict[str, str], proxy: str | None) -> None:
    assert proxies.of(server, environ) == proxy


@pytest.mark.parametrize(
    "proxy",
    [
        *("socks5://ann:pw@proxy:1080", "http://ann:pw@proxy:port", "http://:3128", "http://", "http://["),
        *("http://ann:pw@proxy/path", "http://ann:pw@proxy?a=b", "http://ann:pw@proxy/#a", "http://pw@proxy:3128"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_told_without_its_password(tmp_path: Path, proxy: str) -> None:
    for path, environ, name in (
        (written(tmp_path / "a", {}), {"HTTPS_PROXY": proxy}, "HTTPS_PROXY"),
        (written(tmp_path / "b", {}, **{"proxy-url": proxy}), {}, "`proxy-url` of the kubeconfig"),
    ):
        with pytest.raises(errors.InvalidInput, match=f"^{name} names a proxy that cannot be used") as refused:
            found(path, **environ)
        assert "pw" not in str(refused.value)


async def test_a_command_that_meets_such_a_proxy_is_refused_without_its_password() -> None:
    anyone = credentials.Fixed({})
    access = credentials.Access(server="http://kube.example.com", identity=anyone, proxy="http://ann:pw@127.0.0.1:1/a")
    async with client.Client(access) as api:
        with pytest.raises(errors.Unavailable, match="the proxy on the way") as refused:
            await commands.start(api, "/pods/x", "main", ["true"], tty=False, rows=24, columns=80)
    assert "pw" not in str(refused.value)
    assert refused.value.__suppress_context__, "a log of the error has no password"


def test_the_proxy_of_the_kubeconfig_comes_first(tmp_path: Path) -> None:
    path = written(tmp_path, {}, **{"proxy-url": PROXY})
    assert found(path, HTTPS_PROXY="http://other", NO_PROXY="*").proxy == PROXY
    assert found(written(tmp_path, {}), HTTPS_PROXY=PROXY).proxy == PROXY
    assert found(written(tmp_path, {}), HTTPS_PROXY=PROXY, NO_PROXY="10.0.0.0/8").proxy is None


def test_a_pod_asks_the_service_of_its_cluster_without_a_proxy(tmp_path: Path) -> None:
    test_reach.certify(tmp_path, "https://127.0.0.1")
    (tmp_path / "token").write_text("mounted")
    (tmp_path / "server.pem").rename(tmp_path / "ca.crt")
    environ = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "HTTPS_PROXY": PROXY}
    assert credentials.in_cluster(environ, tmp_path, lambda: 0.0).proxy is None


class Tunnels:
    """A proxy that leads every host to one port of this machine, and asks for a password if it has one."""

    def __init__(self, port: int, password: str = "") -> None:
        self._port = port
        self._password = password
        self.asked: list[str] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.asked.append(request.partition("\r\n")[0])
        wanted = base64.b64encode(self._password.encode()).decode()
        if self._password and f"Proxy-Authorization: Basic {wanted}" not in request:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            there = await asyncio.open_connection("127.0.0.1", self._port)
            await asyncio.gather(passed(reader, there[1]), passed(there[0], writer))
        writer.close()


async def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass all bytes on, up to their end."""
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(1 << 16):
            writer.write(chunk)
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def tunnels(folder: Path, password: str = "") -> AsyncIterator[Tunnels]:
    """Run such a proxy before a server of TLS with the name of SERVER, which says its version."""
    test_reach.certify(folder, "https://kube.example.com")
    with test_reach.answering(200, b'{"major": "1", "minor": "20"}', folder) as port:
        made = Tunnels(port, password)
        server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
        made.port = server.sockets[0].getsockname()[1]
        try:
            yield made
        finally:
            server.close()
            await server.wait_closed()


def through(folder: Path, proxy: str) -> client.Client:
    trusted = str(folder / "server.pem")
    path = written(folder / "home", {"token": "t"}, **{"server": SERVER, "certificate-authority": trusted})
    return client.Client(found(path, HTTPS_PROXY=proxy), tries=1)


@pytest.mark.parametrize("password", ["", "ann:pw"])
async def test_requests_pass_through_the_proxy(tmp_path: Path, password: str) -> None:
    """The proxy sees the name of the server and nothing else: TLS goes on to the server."""
    async with tunnels(tmp_path, password) as proxy:
        user = f"{password}@" if password else ""
        async with through(tmp_path, f"http://{user}127.0.0.1:{proxy.port}") as api:
            assert (await api.version()).minor == "20"
    assert proxy.asked == ["CONNECT kube.example.com:6443 HTTP/1.1"]


async def test_the_refusal_of_a_proxy_is_told_without_the_password(tmp_path: Path) -> None:
    async with tunnels(tmp_path, "ann:right") as proxy:
        api = through(tmp_path, f"http://ann:wrong@127.0.0.1:{proxy.port}")
        with pytest.raises(errors.Unavailable, match="407") as refused:
            await api.version()
        await api.close()
    assert "wrong" not in str(refused.value)
