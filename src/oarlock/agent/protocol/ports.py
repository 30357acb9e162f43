"""The ports of the held block that are free at this moment. Registration asks once."""

from __future__ import annotations

import socket


def free(ports: list[int]) -> list[int]:
    """Return the ports on which a server could listen, by IPv4 and by IPv6.

    An earlier connection in TIME_WAIT does not count.
    """
    return [port for port in ports if _listens(port)]


def _listens(port: int) -> bool:
    both = socket.has_dualstack_ipv6()
    probe = socket.socket(socket.AF_INET6 if both else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if both:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("", port))
        probe.listen(1)
    except (OSError, OverflowError):
        return False
    finally:
        probe.close()
    return True
