"""A held port is free where nothing listens there, by IPv4 or by IPv6."""

from __future__ import annotations

import socket

from oarlock.agent.protocol import ports


def test_a_port_that_is_taken_by_either_family_is_not_free():
    families = [(socket.AF_INET, "127.0.0.1")]
    if socket.has_dualstack_ipv6():
        families.append((socket.AF_INET6, "::"))
    for family, address in families:
        with socket.socket(family, socket.SOCK_STREAM) as taken:
            if family == socket.AF_INET6:
                taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            taken.bind((address, 0))
            taken.listen(1)
            port = taken.getsockname()[1]
            assert ports.free([port]) == []
        assert ports.free([port]) == [port]
