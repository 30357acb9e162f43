"""The listening socket of the server, and the HTTP server over it."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import uvicorn

from oarlock.api.process import connections
from oarlock.spec import errors

BACKLOG = 2048


def listen(host: str, port: int, earlier: int) -> socket.socket:
    """Return a listening socket: on `port`, else on the earlier one, else on any. Raises Unavailable."""
    if not port and earlier:
        with contextlib.suppress(OSError):
            return _listening(host, earlier)
    try:
        return _listening(host, port)
    except OSError as error:
        raise errors.Unavailable(
            f"{host}:{port} cannot be listened on: {error.strerror or error}.",
            hint="Choose another --port, or none for a free one.",
        ) from error


def _listening(host: str, port: int) -> socket.socket:
    """Return a listening socket that says TCP by name, as `socket.create_server` does not.

    asyncio sets TCP_NODELAY only where it reads so. Without it every small answer waits 40 ms for an acknowledgement.
    """
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if host == "::":  # all addresses, of IPv4 too, whatever the machine's default
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def http(
    app: Any, counted: connections.OpenConnections, *, grace_s: float, tls_cert: str | None, tls_key: str | None
) -> uvicorn.Server:
    """Return the HTTP server. At its end requests that are under way may take `grace_s`."""
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=connections.protocol(counted),
        backlog=connections.ACCEPTS,
        ws=connections.WebSocketProtocol,
        ws_max_size=1 << 20,
        ws_per_message_deflate=False,
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(grace_s),
        ssl_certfile=tls_cert,
        ssl_keyfile=tls_key,
    )
    return connections.HttpServer(config, BACKLOG)
