"""The listening socket of the server, and the question whether a client is on this machine."""

from __future__ import annotations

import socket

import pytest

from oarlock.api import application
from oarlock.api.process import listening


def test_a_server_at_all_addresses_answers_by_both_families() -> None:
    host = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
    with listening.listen(host, 0, 0) as server:
        port = server.getsockname()[1]
        for address in ("127.0.0.1", "::1") if host == "::" else ("127.0.0.1",):
            with socket.create_connection((address, port), timeout=60):
                there, _ = server.accept()
                there.close()


@pytest.mark.parametrize(
    ("client", "is_here"),
    [
        (("127.0.0.1", 5), True),
        (("::1", 5), True),
        (("::ffff:127.0.0.1", 5), True),
        (("::ffff:10.0.0.1", 5), False),
        (("fd00::1", 5), False),
        (("unix", 0), False),
        (None, False),
    ],
)
def test_a_client_of_ipv4_at_a_server_of_ipv6_counts_by_its_own_address(
    client: tuple[str, int] | None, is_here: bool
) -> None:
    assert application.from_loopback({"client": client}) is is_here
