"""The ports of the held block that are free at this moment. Registration asks once.

A port can be tried only by listening there, for an instant. Another agent may try the same port in that instant: of a
second server on this machine, which gives out the same blocks. So a port that is needed is tried again.
"""

from __future__ import annotations

import os
import socket
import time

AGAIN_S = (0.05, 0.2, 0.5)
"""The pauses before a port is tried again."""


def free(ports: list[int], needed: int) -> list[int]:
    """Return the ports on which a server could listen, by IPv4 and by IPv6. Where fewer than `needed` are free, the
    others are tried again for a while.

    An earlier connection in TIME_WAIT does not count.
    """
    found = {port for port in ports if _listens(port)}
    for pause_s in AGAIN_S:
        if len(found) >= min(needed, len(ports)):
            break
        time.sleep(pause_s * (0.5 + os.urandom(1)[0] / 255.0))
        found |= {port for port in ports if port not in found and _listens(port)}
    return [port for port in ports if port in found]


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
