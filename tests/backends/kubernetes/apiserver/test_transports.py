"""The transport over aiohttp, at a server of TLS that answers nothing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from pathlib import Path

import pytest
from tests.agent import test_reach

from oarlock.backends.kubernetes.apiserver import credentials, transports

PATIENCE_S = 25.0
"""asyncio itself gives up a close of TLS after 30 s."""


class Silent:
    """A server of TLS that reads one request, and neither answers it nor says anything when the client closes."""

    def __init__(self, folder: Path) -> None:
        test_reach.certify(folder, "https://127.0.0.1")
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(folder / "server.pem", folder / "key.pem")
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.asked = asyncio.Event()
        self.ended = False
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with self._socket, self._tls.wrap_socket(self._socket.accept()[0], server_side=True) as talking:
            talking.recv(1 << 16)
            self._loop.call_soon_threadsafe(self.asked.set)
            with socket.socket(fileno=talking.detach()) as bare:
                bare.settimeout(PATIENCE_S)
                with contextlib.suppress(TimeoutError):
                    self.ended = self._has_ended(bare)

    def _has_ended(self, bare: socket.socket) -> bool:
        with contextlib.suppress(ConnectionError):
            while bare.recv(1 << 16):
                pass
        return True

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.join)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_request_that_is_broken_off_before_its_answer_leaves_no_connection(
    tmp_path: Path, streamed: bool
) -> None:
    server = Silent(tmp_path)
    trust = ssl.create_default_context(cafile=str(tmp_path / "server.pem"))
    access = credentials.Access(server=f"https://127.0.0.1:{server.port}", identity=credentials.Fixed({}), tls=trust)
    http = transports.Http(access, 4)
    request = transports.Request(method="GET", path="/version")

    async def ask() -> None:
        if streamed:
            async with http.stream(request):
                pass
        else:
            await http.send(request)

    asking = asyncio.create_task(ask())
    await server.asked.wait()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await http.close()
    await server.close()
    assert server.ended
